"""What a run of word vectors tells: words of the text, words/s, loss."""

from __future__ import annotations

import math

from sparsefleet.train.progress import Snapshot
from sparsefleet.train.reporting import Reporter


class WordsReport(Reporter):
    """Speaks of words where others speak of samples, and remembers the last epoch's loss."""

    def __init__(self, words: float) -> None:
        """words: of an epoch of this trainer's text, those that are left out too."""
        self._words = words
        self.loss = math.nan
        """Of a word, over the last epoch: the mean of its pairs', each a word and its negatives."""
        self.words_done = 0.0
        """By this run, those that are left out too."""

    def describe(self, snapshot: Snapshot) -> str:
        words = self._done(snapshot)
        speed = words / snapshot.seconds if snapshot.seconds else 0.0
        loss = "-" if math.isnan(snapshot.loss) else f"{snapshot.loss:.4f}"
        return f"{words:,.0f} words  {speed:,.0f} words/s  loss {loss}"

    def epoch_end(self, snapshot: Snapshot) -> None:
        self.loss, self.words_done = snapshot.loss, self._done(snapshot)

    def _done(self, snapshot: Snapshot) -> float:
        return self._words * max(0.0, snapshot.epoch + (snapshot.share or 0.0) - snapshot.done_before)
