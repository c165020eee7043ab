"""NumPy and plain Python twins of `kernels.words`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.rows import I32, U32
from sparsefleet.kernels.words import LONGEST_WORD, U8, Counted, Samples, Stepped

_U64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_TOKEN = re.compile(rb"[^ \t\n\v\f\r]+|\n")


def mix64(x: int) -> int:
    x &= _U64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _U64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _U64
    return x ^ (x >> 31)


class _Blocks:
    """Words and line feeds of text that comes in blocks, each with the bytes up to its end."""

    def __init__(self) -> None:
        self._partial, self._passed = b"", 0

    def feed(self, block: U8, last: bool) -> Iterator[tuple[bytes, int]]:
        before = self._passed - len(self._partial)
        text = self._partial + block.tobytes()
        self._partial, self._passed = b"", self._passed + len(block)
        for token in _TOKEN.finditer(text):
            if token.end() == len(text) and token[0] != b"\n" and not last:
                self._partial = token[0]
            else:
                yield token[0], before + token.end()


class WordCounter:
    def __init__(self, most: int) -> None:
        self._most, self._least = most, 0
        self._counts: Counter[bytes] = Counter()
        self._blocks = _Blocks()
        self.words = self.too_long = self.forgotten = 0

    def feed(self, block: U8, last: bool) -> None:
        for word, _ in self._blocks.feed(block, last):
            if word == b"\n":
                continue
            if len(word) > LONGEST_WORD:
                self.too_long += 1
            else:
                self.words += 1
                self._add(word, 1)

    def merge(self, other: WordCounter) -> None:
        self.words += other.words
        self.too_long += other.too_long
        self.forgotten += other.forgotten
        for word, count in other._counts.items():
            self._add(word, count)

    def _add(self, word: bytes, count: int) -> None:
        if word not in self._counts and len(self._counts) >= self._most:
            while len(self._counts) > self._most // 2:
                self._least += 1
                self.forgotten += sum(c for c in self._counts.values() if c <= self._least)
                self._counts = Counter({w: c for w, c in self._counts.items() if c > self._least})
        self._counts[word] += count

    def __len__(self) -> int:
        return len(self._counts)

    def counted(self, least: int) -> Counted:
        found = {word: count for word, count in self._counts.items() if count >= least}
        text = b"".join(word + b"\n" for word in found)
        return Counted(np.frombuffer(text, np.uint8), np.array(list(found.values()), np.uint64))


class WordTable:
    def __init__(self, text: U8, keep: U32, share: U32, other: U32) -> None:
        self.numbers = {word: number for number, word in enumerate(text.tobytes().split(b"\n")[:-1])}
        self.keep, self.share, self.other = keep.tolist(), share.tolist(), other.tolist()
        self.words = len(self.keep)

    def negative(self, draw: int) -> int:
        number = (draw >> 32) * self.words >> 32
        return number if draw & 0xFFFFFFFF <= self.share[number] else int(self.other[number])


class WordParser:
    def __init__(self, table: WordTable, seed: int, window: int, negatives: int, shared: int, number: int) -> None:
        self._table, self._seed, self._window = table, seed, window
        self._negatives, self._shared, self._number = negatives, shared, number
        self._blocks, self._line = _Blocks(), 0
        self.unknown = 0

    def parse(self, block: U8, last: bool) -> Samples:
        table, seed = self._table, self._seed
        keys, radius, groups, numbers, ends = [], [], [], [], []
        for word, end in self._blocks.feed(block, last):
            if word == b"\n":
                self._line += 1
                continue
            if len(word) > LONGEST_WORD:
                continue
            self._number += 1
            key = table.numbers.get(word)
            if key is None:
                self.unknown += 1
                continue
            draw = mix64(seed + self._number * _GOLDEN)
            if draw & 0xFFFFFFFF > table.keep[key]:
                continue
            first = mix64((seed ^ _U64) + self._number // self._shared * _GOLDEN)
            drawn = [table.negative(mix64(first + k * _GOLDEN)) for k in range(1, self._negatives + 1)]
            keys += [key, *drawn]
            radius.append(1 + ((draw >> 32) * self._window >> 32))
            groups.append((mix64(seed) + self._line) & _U64)
            numbers.append(self._number)
            ends.append(end)
        return Samples(
            np.array(keys, np.uint64),
            np.array(radius, np.float32),
            np.array(groups, np.uint64),
            np.array(numbers, np.int64),
            np.array(ends, np.int64),
        )


def skip_gram(words: F32, contexts: F32, inputs: I32, outputs: I32, radius: F32, groups: U64, rates: F32) -> Stepped:
    new_words, new_contexts = words.copy(), contexts.copy()
    count = len(inputs)
    rows = outputs.reshape(count, -1)
    probabilities, loss = np.full(count, 0.5, np.float32), 0.0
    with flushed():
        for b in range(count):
            first = last = b
            while first > 0 and b - first < radius[b] and groups[first - 1] == groups[b]:
                first -= 1
            while last + 1 < count and last - b < radius[b] and groups[last + 1] == groups[b]:
                last += 1
            around = [inputs[j] for j in range(first, last + 1) if j != b]
            if not around:
                continue
            x, out = new_words[around], new_contexts[rows[b]]
            scores = x @ out.T  # [inputs, 1 + K]
            scores[:, 0] *= -1
            wrong = 1 / (1 + np.exp(-scores))  # how far each probability is from what it should be
            losses = np.logaddexp(0, scores)
            itself = rows[b] == rows[b][0]  # a word drawn as its own negative is left out
            itself[0] = False
            wrong[:, itself] = losses[:, itself] = 0
            loss += float(losses.sum()) / len(around)
            probabilities[b] = 1 - wrong[:, 0].mean()
            steps = -rates[b] * wrong
            steps[:, 0] *= -1
            np.add.at(new_words, around, steps @ out)
            np.add.at(new_contexts, rows[b], steps.T @ x)
    return Stepped(loss, probabilities, words - new_words, contexts - new_contexts)
