"""What clients and parameter servers say to each other. PROTOCOL.md describes it; both sides import it from here."""

from sparsefleet.store.wire.frames import (
    FRAME_SCHEMA,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    PROTOCOL,
    Frame,
    WireError,
    decode,
    encode,
    read_json,
    to_json,
)
from sparsefleet.store.wire.parts import Part, Parts, describe, layout_bytes, read_parts
from sparsefleet.store.wire.specs import differences, initializer_from_dict, spec_from_dict, spec_to_dict

__all__ = [
    "FRAME_SCHEMA",
    "MAX_BODY_BYTES",
    "MAX_HEADER_BYTES",
    "PROTOCOL",
    "Frame",
    "Part",
    "Parts",
    "WireError",
    "decode",
    "describe",
    "differences",
    "encode",
    "initializer_from_dict",
    "layout_bytes",
    "read_json",
    "read_parts",
    "spec_from_dict",
    "spec_to_dict",
    "to_json",
]
