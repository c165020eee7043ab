"""What clients and parameter servers say to each other. PROTOCOL.md describes it; both sides import it from here."""

from sparsefleet.store.wire.frames import (
    FRAME_SCHEMA,
    PROTOCOL,
    Frame,
    Letter,
    WireError,
    decode,
    encode,
    read_json,
    refusal,
    refused,
    to_json,
)
from sparsefleet.store.wire.parts import Part, Parts, describe, layout_bytes, read_parts
from sparsefleet.store.wire.specs import spec_from_dict, spec_to_dict

__all__ = [
    "FRAME_SCHEMA",
    "PROTOCOL",
    "Frame",
    "Letter",
    "Part",
    "Parts",
    "WireError",
    "decode",
    "describe",
    "encode",
    "layout_bytes",
    "read_json",
    "read_parts",
    "refusal",
    "refused",
    "spec_from_dict",
    "spec_to_dict",
    "to_json",
]
