"""Parameter servers: processes that hold tables and dense blocks for trainers. `ParameterServer` is one of them."""

from sparsefleet.server.config import ServerConfig
from sparsefleet.server.process import ParameterServer

__all__ = ["ParameterServer", "ServerConfig"]
