"""Shadow: a version that scores what another one has answered, and answers nobody.

It works when nothing else waits, after the answers are out; samples that it has no time for are counted. What it finds
is in /metrics, and in the log now and then: for each label, how far its scores are from those answered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, Batch
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.log import tell, tell_seldom
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.versions import Versions

TELL_SECONDS = 60.0


class Shadow:
    def __init__(self, versions: Versions, batcher: MicroBatcher, metrics: Metrics) -> None:
        self._versions, self._batcher, self._metrics = versions, batcher, metrics
        self._told_at = time.monotonic() - TELL_SECONDS + 5

    def follow(self, answered: Predictor, batch: Batch, scores: Scores) -> None:
        """Samples that were scored for answers. Those of a canary are not compared."""
        if self._versions.shadow is None or answered is not self._versions.current:
            return
        item = (batch, by_label(answered, scores))
        if not self._batcher.submit_idle(self._work, item, len(batch)):
            self._metrics.shadow_skipped(len(batch))

    def _work(self, items: list[Any]) -> None:
        with self._versions.hold_shadow() as predictor:
            for batch, answered in items if predictor is not None else ():
                assert predictor is not None
                try:
                    found = by_label(predictor, predictor.score(batch))
                except Exception as error:
                    tell_seldom("shadow", f"the shadow {predictor.version} cannot score: {error}")
                    return
                # By name: a version that was switched to meanwhile may have others.
                far = {name: found[name].astype(np.float64) - answered[name] for name in found if name in answered}
                if not far:
                    words = f"{', '.join(found)}, none of which is answered: {', '.join(answered)}"
                    tell_seldom("shadow", f"the shadow {predictor.version} scores {words}")
                    return
                self._metrics.shadowed(predictor.version, far)
                self._tell(predictor.version)

    def _tell(self, version: str) -> None:
        if time.monotonic() - self._told_at < TELL_SECONDS:
            return
        self._told_at = time.monotonic()
        rows, found = self._metrics.shadow_summary(version)
        told = "; ".join(f"{name} {mean:.6f} off on average, {most:.6f} at most" for name, mean, most in found)
        tell(f"the shadow {version} scored {rows:,} rows along: {told}")


def by_label(predictor: Predictor, scores: Scores) -> Mapping[str, F32]:
    """Scores of each label by its name, of a model for one label too."""
    return scores.by_label or {predictor.labels[0]: scores.probabilities}
