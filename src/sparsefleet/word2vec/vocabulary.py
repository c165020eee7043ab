"""Vocabulary: the words that get a vector, the most frequent first, and how often each occurs in the text."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sparsefleet.core.batch import I64
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.files import file_size
from sparsefleet.kernels.rows import U32
from sparsefleet.kernels.words import LONGEST_WORD, U8, WordCounter, WordTable
from sparsefleet.word2vec.corpus import blocks, plan

logger = logging.getLogger("sparsefleet.word2vec")

MOST_WORDS = 8_000_000
"""Different words that are counted at a time, by all threads together: some 60 bytes each. Beyond, the rarest go."""
PIECES_PER_THREAD = 4
POWER = 0.75
"""Negatives are drawn by their frequency to the power of this."""


@dataclass(frozen=True)
class Vocabulary:
    words: tuple[str, ...]
    """By number; no white space in them, each once."""
    counts: I64
    """[V]"""
    text_words: int
    """Words of the text, those that are too rare for the vocabulary too."""

    def __post_init__(self) -> None:
        if not self.words:
            raise DataError("the vocabulary is empty: no word occurs often enough")
        if len(self.counts) != len(self.words) or (np.asarray(self.counts) < 1).any():
            raise ConfigError("a vocabulary needs a count of 1 or above for each of its words")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def text(self) -> U8:
        """All words, a line feed behind each, as UTF-8."""
        return np.frombuffer("".join(word + "\n" for word in self.words).encode(), np.uint8)

    @cached_property
    def digest(self) -> int:
        """64 bits that tell two vocabularies apart."""
        whole = hashlib.blake2b(self.text.tobytes(), digest_size=8)
        whole.update(self.counts.astype("<i8").tobytes())
        return int.from_bytes(whole.digest(), "little")

    def table(self, subsample: float) -> WordTable:
        """For parsing text: words are found, left out and drawn by it."""
        if subsample:
            # Of the vocabulary's own words, as word2vec does.
            share = self.counts / self.counts.sum()
            keep = (np.sqrt(share / subsample) + 1) * subsample / share
        else:
            keep = np.ones(len(self))
        bits = (np.minimum(keep, 1.0) * (2**32 - 1)).astype(np.uint32)
        return WordTable(self.text, bits, *alias_table(self.counts.astype(np.float64) ** POWER))

    def save(self, path: str | Path) -> None:
        """A line for each word: the word, a space, its count; the text's words stand in the first line."""
        lines = [f"{word} {count}\n" for word, count in zip(self.words, self.counts.tolist(), strict=True)]
        Path(path).write_text(f"# {self.text_words} words\n" + "".join(lines), "utf-8")

    @staticmethod
    def load(path: str | Path) -> Vocabulary:
        try:
            lines = Path(path).read_text("utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise DataError(f"cannot read the vocabulary {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: a vocabulary is UTF-8 text, a word and its count a line: {error}") from error
        total, words, counts = None, [], []
        for number, line in enumerate(lines, 1):
            # Not `split()`: a word may hold what Unicode calls a space.
            parts = line.split(" ")
            if number == 1 and len(parts) == 3 and parts[0] == "#" and parts[1].isdecimal():
                total = int(parts[1])
                continue
            if len(parts) != 2 or not parts[0] or not parts[1].isdecimal() or not 0 < int(parts[1]) < 2**63:
                raise DataError(f"{path}, line {number}: {line!r:.80} is not a word, a space and a count above 0")
            words.append(parts[0])
            counts.append(int(parts[1]))
        if not words:
            raise DataError(f"{path}: there are no words in this vocabulary")
        if len(set(words)) < len(words):
            raise DataError(f"{path}: a word is there twice")
        return Vocabulary(tuple(words), np.array(counts, np.int64), sum(counts) if total is None else total)


def alias_table(weights: np.ndarray) -> tuple[U32, U32]:
    """share and other [V]: draw v evenly, keep it with probability share[v] / 2**32, else take other[v] (Vose 1991)."""
    scaled = (weights * (len(weights) / weights.sum())).tolist()
    other = list(range(len(scaled)))
    small = [v for v, weight in enumerate(scaled) if weight < 1]
    large = [v for v, weight in enumerate(scaled) if weight >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        other[low] = high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    share = np.minimum(np.array(scaled), 1.0)
    share[small + large] = 1.0  # what is left over is 1, but for rounding
    return (share * (2**32 - 1)).astype(np.uint32), np.array(other, np.uint32)


def count_words(
    files: Sequence[str],
    *,
    min_count: int = 5,
    threads: int = 1,
    most: int = MOST_WORDS,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Vocabulary:
    """Count the words of all files, by several threads, in bounded memory.

    min_count: words that occur less often are left out. most: see `MOST_WORDS`. progress: told (bytes read, of how
    many), from any thread.
    """
    if min_count < 1:
        raise ConfigError(f"min_count={min_count} must be 1 or above")
    return _vocabulary(_counted(files, threads, most, progress), files, min_count)


def words_in(
    files: Sequence[str],
    *,
    threads: int = 1,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> int:
    """How many words all files have together: `Vocabulary.text_words` of them, whatever the vocabulary."""
    return _counted(files, threads, MOST_WORDS, progress).words


def _counted(files: Sequence[str], threads: int, most: int, progress: Callable[[int, int | None], None]) -> WordCounter:
    if threads < 1:
        raise ConfigError(f"threads={threads} must be 1 or above")
    if most < 2 * threads:
        raise ConfigError(f"most={most} must be at least two words for each of {threads} threads")
    units = plan(files, threads * PIECES_PER_THREAD)
    sizes = [unit.stop - unit.start if unit.stop is not None else file_size(unit.file) - unit.start for unit in units]
    counters: list[WordCounter] = []
    lock, own, done = threading.Lock(), threading.local(), [0]

    def count(index: int) -> None:
        if not hasattr(own, "counter"):
            own.counter = WordCounter(most // threads)
            with lock:
                counters.append(own.counter)
        for block, _ in blocks(units[index]):
            own.counter.feed(block, False)
        own.counter.feed(np.empty(0, np.uint8), True)
        with lock:
            done[0] += sizes[index]
            progress(done[0], sum(sizes))

    with ThreadPoolExecutor(threads, "sparsefleet-count") as pool:
        for _ in pool.map(count, range(len(units))):
            pass
    whole = WordCounter(most)
    for counter in counters:
        whole.merge(counter)
    return whole


def _vocabulary(counter: WordCounter, files: Sequence[str], min_count: int) -> Vocabulary:
    where = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}"
    if counter.too_long:
        logger.warning("%d runs of more than %d bytes are no words: left out", counter.too_long, LONGEST_WORD)
    if counter.forgotten:
        logger.warning(
            "more different words than fit into memory: %d occurrences of rare ones are not counted", counter.forgotten
        )
    if not counter.words:
        raise DataError(f"there are no words in {where}")
    text, counts = counter.counted(min_count)
    if not len(counts):
        raise DataError(
            f"the vocabulary is empty: none of the {len(counter):,} different words in {where} occurs {min_count} "
            "times; lower the minimum count (--min-count), or give more text"
        )
    raw = text.tobytes().split(b"\n")[:-1]
    order = sorted(range(len(raw)), key=lambda i: (-int(counts[i]), raw[i]))
    words, kept = [], []
    for i in order:
        try:
            words.append(raw[i].decode("utf-8"))
            kept.append(int(counts[i]))
        except UnicodeDecodeError:
            continue
    if len(words) < len(raw):
        logger.warning("%d words of the vocabulary are not UTF-8: left out", len(raw) - len(words))
    return Vocabulary(tuple(words), np.array(kept, np.int64), counter.words)


def words_of(text: Iterable[int] | U8, counts: I64, text_words: int) -> Vocabulary:
    """The inverse of `Vocabulary.text`."""
    words = np.asarray(text, np.uint8).tobytes().decode("utf-8").split("\n")[:-1]
    return Vocabulary(tuple(words), np.asarray(counts, np.int64), text_words)
