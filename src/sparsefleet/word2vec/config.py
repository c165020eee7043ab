"""What a skip-gram model is trained with."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.words import MAX_NEGATIVES, MAX_WINDOW

BATCH_WORDS = 1000
"""Words that a thread takes rows for at a time, where nobody says otherwise."""

ASYNC_BATCH_WORDS = 2000
"""The same in mode async, where the rows of every batch travel: half the messages, and vectors as good."""


@dataclass(frozen=True)
class Word2VecConfig:
    dim: int = 100
    """Values of a word's vector."""
    window: int = 5
    """A word is predicted from at most so many words on each side; for each word 1 to `window` is drawn."""
    negatives: int = 5
    """Words that are drawn, by their frequency to the power of 0.75, to be told from the one that stands there."""
    shared_negatives: int = 1
    """So many words of the text, one behind the other, are told from the same negatives. More: fewer rows move."""
    subsample: float = 1e-3
    """Words whose share of the text is above this are left out at random, the more the more frequent; 0: none."""
    learning_rate: float = 0.025
    """At the beginning; it falls in a straight line to `min_learning_rate` at the end of the last epoch."""
    min_learning_rate: float = 1e-4
    seed: int = 0
    """For first values, windows, negatives and left-out words."""

    def __post_init__(self) -> None:
        self._whole("dim", 1, None)
        self._whole("window", 1, MAX_WINDOW)
        self._whole("negatives", 1, MAX_NEGATIVES)
        self._whole("shared_negatives", 1, 1000)
        self._whole("seed", 0, 2**63 - 1)
        for name in ("subsample", "learning_rate", "min_learning_rate"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"{name}={value!r} must be a number, 0 or above")
        if self.min_learning_rate > self.learning_rate:
            raise ConfigError(
                f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}; "
                "the rate falls from the second to the first"
            )

    def _whole(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            allowed = f"{least} or above" if most is None else f"{least} to {most}"
            raise ConfigError(f"{name}={value!r} must be a whole number, {allowed}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
