"""WordVectors: the vectors of a checkpoint, and what people do with them: neighbours, analogies, export."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsefleet.checkpoint import AnyPath, Checkpoint, latest
from sparsefleet.core.batch import F32, I64
from sparsefleet.core.errors import CheckpointError, ConfigError, DataError
from sparsefleet.word2vec.model import COUNTS, TEXT, TOTAL, WORDS
from sparsefleet.word2vec.questions import Section
from sparsefleet.word2vec.vocabulary import Vocabulary, words_of

RESTRICTED = 300_000
"""Analogies are looked for among so many of the most frequent words, as gensim does."""
AT_A_TIME = 512
"""Questions answered in one matrix product."""


@dataclass(frozen=True)
class Answered:
    """How one section of analogy questions went."""

    name: str
    right: int
    asked: int
    skipped: int
    """Questions with a word that is not in the vocabulary."""

    @property
    def accuracy(self) -> float:
        return self.right / self.asked if self.asked else float("nan")


def saved_vocabulary(path: AnyPath) -> Vocabulary:
    """The vocabulary that a checkpoint of word vectors, or the newest one of a folder, was trained with."""
    return _vocabulary(Checkpoint.open(latest(path)))


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    buffers = checkpoint.buffers()
    if not {TEXT, COUNTS, TOTAL} <= buffers.keys():
        raise CheckpointError(
            f"{checkpoint.location} holds no word vectors (it has no vocabulary): give what "
            "`sparsefleet word2vec train --save` wrote"
        )
    try:
        return words_of(buffers[TEXT], buffers[COUNTS], int(buffers[TOTAL][0]))
    except (UnicodeDecodeError, ConfigError, DataError, IndexError) as error:
        raise CheckpointError(f"{checkpoint.location}: its vocabulary is damaged: {error}") from error


class WordVectors:
    def __init__(self, words: Sequence[str], vectors: F32) -> None:
        """vectors [V, D]: of these words, the most frequent first."""
        if vectors.ndim != 2 or len(words) != len(vectors) or not len(words):
            raise ConfigError(f"{len(words)} words and vectors {list(vectors.shape)}: there must be one for each word")
        self.words, self.vectors = tuple(words), vectors

    @staticmethod
    def load(path: AnyPath) -> WordVectors:
        """Of a checkpoint, or of the newest one in a folder. Words that were never trained on have no vector."""
        checkpoint = Checkpoint.open(latest(path))
        vocabulary = _vocabulary(checkpoint)
        table = checkpoint.manifest.table(WORDS)
        vectors = np.zeros((len(vocabulary), table.dim), np.float32)
        there = np.zeros(len(vocabulary), np.bool_)
        for rows in checkpoint.sparse_rows(WORDS, read_state=False):
            if (rows.keys >= len(vocabulary)).any():
                raise CheckpointError(f"{checkpoint.location}: a row belongs to no word of its vocabulary")
            keys: I64 = rows.keys.astype(np.int64)
            vectors[keys], there[keys] = rows.values, True
        if not there.any():
            raise CheckpointError(f"{checkpoint.location} holds no word vectors yet: nothing was trained")
        return WordVectors([vocabulary.words[i] for i in np.flatnonzero(there)], vectors[there])

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.numbers

    def __getitem__(self, word: str) -> F32:
        vector: F32 = self.vectors[self._number(word)]
        return vector

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> F32:
        """[V, D] the vectors, each of length 1."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        directions: F32 = self.vectors / np.maximum(lengths, 1e-30)
        return directions

    def neighbours(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors point most nearly the same way, with the cosine of the angle."""
        if count < 1:
            raise ConfigError(f"count={count} must be 1 or above")
        number = self._number(word)
        cosines = self.directions @ self.directions[number]
        cosines[number] = -np.inf
        order = np.argsort(-cosines)[: min(count, len(self) - 1)]
        return [(self.words[i], float(cosines[i])) for i in order]

    def analogies(self, sections: Iterable[Section], *, restricted: int = RESTRICTED) -> list[Answered]:
        """Answer questions "a is to b as c is to what?" by the word nearest to b - a + c that is none of the three.

        As in gensim: upper and lower case are the same, only the most frequent words (`restricted`) are asked for or
        answered, and questions with other words are skipped.
        """
        numbers: dict[str, int] = {}
        for number, word in enumerate(self.words[:restricted]):
            numbers.setdefault(word.upper(), number)  # the most frequent spelling stands for all
        chosen = self.directions[:restricted]
        answered = []
        for section in sections:
            asked = [[numbers.get(word.upper(), -1) for word in question] for question in section.questions]
            known = np.array([four for four in asked if min(four) >= 0], np.int64).reshape(-1, 4)
            right = sum(
                self._right(chosen, known[at : at + AT_A_TIME], numbers) for at in range(0, len(known), AT_A_TIME)
            )
            answered.append(Answered(section.name, right, len(known), len(asked) - len(known)))
        return answered

    def _right(self, directions: F32, questions: I64, numbers: dict[str, int]) -> int:
        a, b, c, expected = questions.T
        wanted = directions[b] - directions[a] + directions[c]
        cosines = wanted @ directions.T
        rows = np.arange(len(questions))
        for known in (a, b, c):
            cosines[rows, known] = -np.inf
        if len(numbers) < len(directions):  # other spellings of words do not answer
            cosines[
                :, [i for i, word in enumerate(self.words[: len(directions)]) if numbers[word.upper()] != i]
            ] = -np.inf
        return int((cosines.argmax(1) == expected).sum())

    def export(self, path: str | os.PathLike[str], *, binary: bool = False) -> None:
        """Write the format of the word2vec program, as text or binary: what `KeyedVectors.load_word2vec_format` reads.

        The first line has the number of words and of values; then each word, a space, and its values.
        """
        target = Path(path)
        draft = target.with_name(f".{target.name}.draft")
        try:
            with draft.open("wb") as file:
                self.write(file, binary=binary)
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DataError(f"cannot write {path}: {error.strerror or error}") from error

    def write(self, file: BinaryIO, *, binary: bool = False) -> None:
        """What `export` puts into a file, into one that is open already."""
        file.write(f"{len(self)} {self.dim}\n".encode())
        for word, vector in zip(self.words, self.vectors, strict=True):
            if binary:
                file.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
            else:
                file.write((word + " " + " ".join(map(str, vector.tolist())) + "\n").encode())

    def _number(self, word: str) -> int:
        number = self.numbers.get(word)
        if number is None:
            near = difflib.get_close_matches(word, self.words[:RESTRICTED], 3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise ConfigError(f"the word {word!r} is not in the vocabulary of {len(self):,} words{hint}")
        return number
