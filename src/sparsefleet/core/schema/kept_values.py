"""Kept values of a slot with `min_count`: those that occurred often enough, as a text that stands in the schema.

    "<what they were counted with, 16 hexadecimal digits> <base64 of the rising 64-bit hashes, little endian>"

A value stands there as the hash that its key is made of, before folding. Counting depends on other settings of the slot
(lower, split, its prefix …): the first word is a hash of these, so that a schema edited afterwards is refused, where
every value would silently become rare.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.xxh64 import xxh64

if TYPE_CHECKING:
    from sparsefleet.core.schema.features import Slot

Hashes = npt.NDArray[np.uint64]

MOST = 1_000_000
"""Kept values of all slots of a schema: it travels in every checkpoint and bundle (11 MB with so many)."""
_TEXT = re.compile(r"([0-9a-f]{16}) ([A-Za-z0-9+/]*={0,2})")


def settings_hash(slot: Slot, hash_seed: int) -> str:
    """Of all that decides which hash a value gets, and how often it must occur."""
    told = (slot.min_count, slot.prefix, hash_seed, slot.lower, slot.split, slot.first, slot.length, slot.source)
    return f"{xxh64(repr(told).encode()):016x}"


def kept_text(slot: Slot, hash_seed: int, hashes: Hashes) -> str:
    rising = np.unique(hashes).astype("<u8")
    return f"{settings_hash(slot, hash_seed)} {base64.b64encode(rising.tobytes()).decode()}"


def check_kept(slot: Slot, hash_seed: int) -> None:
    """Refuse values that were counted with other settings."""
    if slot.kept is not None and slot.kept.partition(" ")[0] != settings_hash(slot, hash_seed):
        raise ConfigError(
            f"slot {slot.name!r}: its kept values were counted with another min_count, lower, split, first, length, "
            "column, hash_prefix or hash_seed: take its line under [kept] out of the schema, and `sparsefleet data "
            "prepare` counts anew"
        )


def kept_hashes(text: str, where: str) -> Hashes:
    """Rising hashes."""
    found = _TEXT.fullmatch(text)
    try:
        raw = base64.b64decode(found.group(2), validate=True) if found else b"x"
    except binascii.Error:
        raw = b"x"
    hashes = np.frombuffer(raw, "<u8").astype(np.uint64) if len(raw) % 8 == 0 else None
    if hashes is None or (hashes[1:] <= hashes[:-1]).any():
        raise ConfigError(
            f"{where}: its kept values are damaged: take its line under [kept] out of the schema, and `sparsefleet "
            "data prepare` counts anew"
        )
    return hashes
