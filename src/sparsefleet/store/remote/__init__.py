"""Parameters on servers: `RemoteStore` is the store, `RemoteConfig` says where its servers are."""

from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.store import RemoteStore

__all__ = ["RemoteConfig", "RemoteStore"]
