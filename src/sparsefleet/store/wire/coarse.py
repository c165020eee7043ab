"""Encodings of dense parameters on the wire: gradients on their way up, values on their way down.

float32 says each number exactly. bfloat16 halves the bytes and rounds each number. int8 quarters them, and is told
differences alone: what a message could not say is kept by its sender and said with the next one. So on the way up a
gradient's rest stays with the trainer, and on the way down the server remembers what a trainer knows (`known`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.kernels.coarse import I8, add_int8, from_bfloat16, scales_of, tell_int8, to_bfloat16, to_int8
from sparsefleet.store.wire.frames import WireError


class Encoding(ABC):
    name: ClassVar[str]
    differences: ClassVar[bool] = False
    """Whether values are told as what has changed since the last message, once a first one has told all."""

    @abstractmethod
    def words(self, numbers: int) -> int:
        """How many words of four bytes so many numbers take."""

    @abstractmethod
    def write(self, values: F32, rest: F32, out: F32) -> None:
        """Say values + rest in the words of `out`; `rest` becomes what they could not say, where that is kept."""

    @abstractmethod
    def read(self, words: F32, numbers: int) -> F32:
        """The numbers that the words say, in an array of its own."""

    def tell(self, values: F32, known: F32, out: F32) -> None:
        """Say values - known; `known` becomes what a reader that knew it makes of the words."""
        raise NotImplementedError(f"{self.name} tells values, not differences")

    def add(self, words: F32, known: F32) -> None:
        """Add the numbers that the words say."""
        raise NotImplementedError(f"{self.name} tells values, not differences")

    def checked(self, what: str, words: F32, numbers: int) -> F32:
        """As `read`, of words that came over the network."""
        if len(words) != self.words(numbers):
            raise WireError(
                f"{what}: {numbers} numbers as {self.name} are {self.words(numbers)} words; {len(words)} came"
            )
        return self.read(words, numbers)


class Float32(Encoding):
    name = "float32"

    def words(self, numbers: int) -> int:
        return numbers

    def write(self, values: F32, rest: F32, out: F32) -> None:
        out[:] = values

    def read(self, words: F32, numbers: int) -> F32:
        return words.copy()


class BFloat16(Encoding):
    name = "bfloat16"

    def words(self, numbers: int) -> int:
        return -(-numbers // 2)

    def write(self, values: F32, rest: F32, out: F32) -> None:
        halves = out.view(np.uint16)
        halves[len(values) :] = 0
        to_bfloat16(values, halves[: len(values)])

    def read(self, words: F32, numbers: int) -> F32:
        values = np.empty(numbers, np.float32)
        from_bfloat16(words.view(np.uint16)[:numbers], values)
        return values


class Int8(Encoding):
    name = "int8"
    differences = True

    def words(self, numbers: int) -> int:
        return scales_of(numbers) + -(-numbers // 4)

    def write(self, values: F32, rest: F32, out: F32) -> None:
        to_int8(values, rest, *_places(out, len(values)))

    def read(self, words: F32, numbers: int) -> F32:
        values = np.zeros(numbers, np.float32)
        self.add(words, values)
        return values

    def tell(self, values: F32, known: F32, out: F32) -> None:
        tell_int8(values, known, *_places(out, len(values)))

    def add(self, words: F32, known: F32) -> None:
        scales = scales_of(len(known))
        add_int8(words[:scales], words[scales:].view(np.int8)[: len(known)], known)


def _places(words: F32, numbers: int) -> tuple[F32, I8]:
    """Where in a message the scales go, and the bytes of so many numbers; what is behind them is zero."""
    scales = scales_of(numbers)
    bytes_ = words[scales:].view(np.int8)
    bytes_[numbers:] = 0
    return words[:scales], bytes_[:numbers]


ENCODINGS: dict[str, Encoding] = {one.name: one for one in (Float32(), BFloat16(), Int8())}
"""What `dense_wire` may be."""
EXACT = ENCODINGS["float32"]


def encoding_of(name: object) -> Encoding:
    """The encoding that a message names; WireError for anything else."""
    found = ENCODINGS.get(name) if isinstance(name, str) else None
    if found is None:
        raise WireError(f"dense numbers come as one of {', '.join(ENCODINGS)}; got {name!r:.50}")
    return found


class Known:
    """What the other side knows of one block's values, and since which message. Sender and receiver keep it alike."""

    __slots__ = ("number", "values")

    def __init__(self, values: F32, number: int) -> None:
        self.values, self.number = values, number

    def tell(self, encoding: Encoding, values: F32, out: F32, number: int) -> None:
        """Write what has changed into `out`, and remember what the other side will make of it."""
        encoding.tell(values, self.values, out)
        self.number = number

    def learn(self, encoding: Encoding, words: F32, number: int) -> None:
        encoding.add(words, self.values)
        self.number = number
