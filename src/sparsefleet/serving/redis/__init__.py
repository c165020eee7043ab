"""Rows of bundles in Redis: publish them, read them. FORMAT.md specifies what lies there."""

from sparsefleet.serving.redis.address import RedisAddress
from sparsefleet.serving.redis.connection import RedisError
from sparsefleet.serving.redis.publish import Published, publish, roll_back
from sparsefleet.serving.redis.source import RedisSource

__all__ = ["Published", "RedisAddress", "RedisError", "RedisSource", "publish", "roll_back"]
