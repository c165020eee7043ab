from bundle_fixtures import trained
from redis_server import store

__all__ = ["store", "trained"]
