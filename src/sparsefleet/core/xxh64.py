"""XXH64 in plain Python: for data generators, which start once per file and cannot wait for the native module.

It is also the twin that the native one is tested against, and what `core` hashes with, which stands below the kernels.
Whatever hashes samples does it natively.
"""

from __future__ import annotations

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_M = 0xFFFFFFFFFFFFFFFF


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 of the bytes, 0 to 2**64 - 1: the same number in every process, on every machine."""
    length = len(data)
    at = 0
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _M, (seed + _P2) & _M, seed & _M, (seed - _P1) & _M]
        while at <= length - 32:
            for lane in range(4):
                word = int.from_bytes(data[at : at + 8], "little")
                lanes[lane] = _round(lanes[lane], word)
                at += 8
        one, two, three, four = lanes
        acc = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        for word in lanes:
            acc = ((acc ^ _round(0, word)) * _P1 + _P4) & _M
    else:
        acc = seed + _P5
    acc = (acc + length) & _M
    while at <= length - 8:
        acc ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        acc = (_rotate(acc, 27) * _P1 + _P4) & _M
        at += 8
    if at <= length - 4:
        acc ^= (int.from_bytes(data[at : at + 4], "little") * _P1) & _M
        acc = (_rotate(acc, 23) * _P2 + _P3) & _M
        at += 4
    for byte in data[at:]:
        acc = (_rotate(acc ^ ((byte * _P5) & _M), 11) * _P1) & _M
    acc = ((acc ^ (acc >> 33)) * _P2) & _M
    acc = ((acc ^ (acc >> 29)) * _P3) & _M
    return acc ^ (acc >> 32)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _M


def _round(acc: int, word: int) -> int:
    return (_rotate((acc + word * _P2) & _M, 31) * _P1) & _M
