"""Word vectors: counting words, samples of text, the skip-gram pass. A typed face over the native kernels.

Legend: B words of a stretch of text, K negatives of each, V words of a vocabulary, U and C rows of the tables of words
and of contexts, D values a row.

Arrays must be C-contiguous and of the very dtype named: nothing is converted here. The twin is
`kernels.reference.words`; native words.h and skip_gram.h say what is computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.kernels.levels import native as _native
from sparsefleet.kernels.rows import I32, U32

U8 = npt.NDArray[np.uint8]

MAX_WINDOW, MAX_NEGATIVES, LONGEST_WORD = 64, 63, 1000


class Counted(NamedTuple):
    text: U8
    """The words, a line feed behind each, in no special order."""
    counts: U64
    """[V]"""


class WordCounter:
    """Counts the words of text that comes in blocks, cut anywhere. Not shared between threads.

    Whenever `most` different words have come, the rarest are forgotten, until no more than half remain.
    """

    def __init__(self, most: int) -> None:
        self._native = _native.WordCounter(most)

    def feed(self, block: U8, last: bool) -> None:
        """last: no block follows, so that a word at its end is complete."""
        self._native.feed(block, last)

    def merge(self, other: WordCounter) -> None:
        """Add what the other has counted."""
        self._native.merge(other._native)

    @property
    def words(self) -> int:
        """Words in all, forgotten ones too."""
        total: int = self._native.words()
        return total

    @property
    def too_long(self) -> int:
        """Runs of more than `LONGEST_WORD` bytes, which are no words."""
        total: int = self._native.too_long()
        return total

    @property
    def forgotten(self) -> int:
        """Occurrences of words that were forgotten."""
        total: int = self._native.forgotten()
        return total

    def __len__(self) -> int:
        count: int = self._native.size()
        return count

    def counted(self, least: int) -> Counted:
        """The words that occur so often at least."""
        text = np.empty(self._native.bytes_from(least), np.uint8)
        counts = np.empty(self._native.words_from(least), np.uint64)
        self._native.write(least, text, counts)
        return Counted(text, counts)


class WordTable:
    """The words of a vocabulary by number, how often each is kept, and from what negatives are drawn. Read-only."""

    def __init__(self, text: U8, keep: U32, share: U32, other: U32) -> None:
        """text: as `Counted.text`. keep [V]: a word stays where 32 random bits are not above it.

        share, other [V]: the alias method's: 32 random bits not above share[v] give v, else other[v].
        """
        self.native = _native.WordTable(text, keep, share, other)
        self.words = len(keep)


class Samples(NamedTuple):
    """The words of a block that are in the vocabulary and were kept; n of them."""

    keys: U64
    """[n * (1 + K)] each word's number, then those of its negatives."""
    radius: F32
    """[n] how far its window reaches."""
    groups: U64
    """[n] equal for words of one line."""
    numbers: I64
    """[n] words of the unit up to and with this one, left-out ones too."""
    ends: I64
    """[n] bytes of all blocks up to the end of this one."""


class WordParser:
    """Turns the text of one unit, in blocks that are cut anywhere, into samples. Not shared between threads."""

    def __init__(self, table: WordTable, seed: int, window: int, negatives: int, shared: int, number: int) -> None:
        """shared: so many words of the text, one behind the other, have the same negatives.

        number: words of the unit before the first block. All draws depend on seed and a word's number alone.
        """
        self._negatives = negatives
        self._native = _native.WordParser(table.native, seed, window, negatives, shared, number)

    def parse(self, block: U8, last: bool) -> Samples:
        most = (len(block) + 1) // 2 + 1
        keys = np.empty(most * (1 + self._negatives), np.uint64)
        radius, groups = np.empty(most, np.float32), np.empty(most, np.uint64)
        numbers, ends = np.empty(most, np.int64), np.empty(most, np.int64)
        n = self._native.parse(block, last, keys, radius, groups, numbers, ends)
        return Samples(keys[: n * (1 + self._negatives)], radius[:n], groups[:n], numbers[:n], ends[:n])

    @property
    def unknown(self) -> int:
        """Words so far that are not in the vocabulary."""
        total: int = self._native.unknown()
        return total


class Stepped(NamedTuple):
    loss: float
    """The sum over words of the mean loss of their pairs, each before its update."""
    probabilities: F32
    """[B] what the words around it gave each word, on average; 0.5 where there are none."""
    grad_words: F32
    """[U, D] old - new: what SGD with rate 1 subtracts."""
    grad_contexts: F32
    """[C, D]"""


def skip_gram(words: F32, contexts: F32, inputs: I32, outputs: I32, radius: F32, groups: U64, rates: F32) -> Stepped:
    """Skip-gram with negative sampling over a stretch of text, word by word, on copies of these rows.

    words [U, D], contexts [C, D]: rows. inputs [B]: each word's row among `words`. outputs [B * (1 + K)]: rows among
    `contexts`, of the word and of its negatives. radius, groups, rates [B]: see `Samples`; the learning rates.
    """
    grad_words, grad_contexts = np.empty_like(words), np.empty_like(contexts)
    probabilities = np.empty(len(inputs), np.float32)
    loss = _native.skip_gram(
        words, contexts, inputs, outputs, radius, groups, rates, grad_words, grad_contexts, probabilities
    )
    return Stepped(loss, probabilities, grad_words, grad_contexts)
