"""Reporter: where a run tells what it does. Several may listen at once; each is called from the main thread only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparsefleet.train.progress import Snapshot

Look = Callable[[], Snapshot]
"""Takes a snapshot when called: it costs an AUC, so a reporter looks only when it has something to show."""


class Reporter:
    """Every method may do nothing."""

    def start(self, facts: Mapping[str, object]) -> None:
        """Training begins; `facts` describe the run."""

    def tick(self, look: Look) -> None:
        """Called about ten times a second during training."""

    def epoch_end(self, snapshot: Snapshot) -> None:
        """All rows of an epoch have been trained."""

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """The test data has been scored."""

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        """The validation data has been scored; `best`: no epoch before was as good."""

    def saved(self, path: str, step: int) -> None:
        """A checkpoint is complete."""

    def close(self) -> None:
        """The run is over, well or not."""
