"""SkipGram: two tables and nothing else; trained by a kernel of its own, on the rows of a batch.

The kernel makes its steps on copies of the rows, word by word, with the learning rate that each word has in the batch.
What it asks of the tables is the difference, so both have SGD with rate 1: whatever store and mode, the steps add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Constant, Uniform
from sparsefleet.kernels.words import skip_gram
from sparsefleet.models.base import Rebuildable
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.lookup import RowSource
from sparsefleet.nn.objective import Judged
from sparsefleet.optim import SGD
from sparsefleet.word2vec.config import Word2VecConfig
from sparsefleet.word2vec.reader import SLOTS, WORD
from sparsefleet.word2vec.vocabulary import Vocabulary, words_of

WORDS, CONTEXTS = "words", "contexts"
"""The tables: of vectors, and of what they are multiplied with to predict the words around."""
TEXT, COUNTS, TOTAL = "vocabulary_text", "vocabulary_counts", "vocabulary_text_words"
"""Buffers: the vocabulary lies in the checkpoint with the rows that it numbers."""


def step_rule() -> SGD:
    """The rule of both tables: it subtracts what the kernel asks for, which has the learning rate in it."""
    return SGD(1.0)


class SkipGram(Rebuildable):
    name: ClassVar[str] = "SkipGram"

    def __init__(self, vocabulary: Vocabulary, config: Word2VecConfig | None = None) -> None:
        super().__init__()
        self.config = config or Word2VecConfig()
        dim, rule = self.config.dim, step_rule()
        self.words = SparseEmbedding(WORDS, dim, [WORD], initializer=Uniform(-0.5 / dim, 0.5 / dim), optimizer=rule)
        self.contexts = SparseEmbedding(CONTEXTS, dim, SLOTS, initializer=Constant(0.0), optimizer=rule)
        self.register_buffer(TEXT, torch.from_numpy(vocabulary.text.copy()))
        self.register_buffer(COUNTS, torch.from_numpy(vocabulary.counts.copy()))
        self.register_buffer(TOTAL, torch.tensor([vocabulary.text_words], dtype=torch.int64))

    def forward(self, batch: Batch) -> torch.Tensor:
        raise ConfigError("a skip-gram model has vectors, and scores no samples: look at them with WordVectors.load")

    def own_pass(self, source: RowSource) -> SkipGramPass:
        return SkipGramPass(source)

    def describe(self) -> dict[str, Any]:
        sizes = {"words": len(getattr(self, COUNTS)), "bytes": len(getattr(self, TEXT))}
        return {"settings": self.config.to_dict(), "vocabulary": sizes}

    @classmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        """The vocabulary comes with the checkpoint's buffers; until then its words are stand-ins."""
        count, size = (int(description["vocabulary"][name]) for name in ("words", "bytes"))
        model = cls(Vocabulary(("?",), np.ones(1, np.int64), 1), Word2VecConfig(**description["settings"]))
        model.register_buffer(TEXT, torch.zeros(size, dtype=torch.uint8))
        model.register_buffer(COUNTS, torch.zeros(count, dtype=torch.int64))
        return model

    def vocabulary(self) -> Vocabulary:
        return words_of(getattr(self, TEXT).numpy(), getattr(self, COUNTS).numpy(), int(getattr(self, TOTAL)[0]))


class SkipGramPass:
    """Implements `BatchPass` (`nn/own_pass.py`): all the arithmetic is in forward, which leaves the gradients ready."""

    def __init__(self, source: RowSource) -> None:
        self._source = source

    def forward(self, batch: Batch) -> Judged:
        if batch.slots != SLOTS or batch.weights is None or batch.groups is None:
            raise ConfigError(
                f"a skip-gram model trains on the batches of a WordReader; got slots {', '.join(batch.slots)}"
            )
        words, contexts = self._source.lookup(WORDS, batch), self._source.lookup(CONTEXTS, batch)
        radius: F32 = batch.dense[:, 0]
        done = skip_gram(
            np.ascontiguousarray(words.values),
            np.ascontiguousarray(contexts.values),
            words.inverse,
            contexts.inverse,
            np.ascontiguousarray(radius),
            batch.groups,
            batch.weights,
        )

        def backward() -> None:
            words.direct_gradient, contexts.direct_gradient = done.grad_words, done.grad_contexts

        return Judged(done.loss, done.probabilities, backward)
