"""A running server. It gets raw samples as JSON, so its own parsing, hashing and normalisation are tested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.verify.http_client import HttpClient, PlaceError, scores_of
from sparsefleet.verify.places import ByLabel, ScoringPlace
from sparsefleet.verify.samples import RawSample

SAMPLES_A_REQUEST = 200


class HttpPlace(ScoringPlace):
    def __init__(self, url: str, timeout: float) -> None:
        self._client = HttpClient(url, timeout)
        self.url = self._client.url
        self.versions: list[str] = []
        """Every version that answered, in order of appearance."""
        self.model: dict[str, Any] = self._client.get("/v1/model")
        if not isinstance(self.model, dict) or "schema" not in self.model:
            raise PlaceError(f"{self._client.url}/v1/model does not describe a model: is it a server of ours?")

    def scores(self, samples: Sequence[RawSample]) -> ByLabel:
        found: dict[str, list[float]] = {}
        for start in range(0, len(samples), SAMPLES_A_REQUEST):
            part = list(samples[start : start + SAMPLES_A_REQUEST])
            answer = self._client.post("/v1/predict", {"rows": part})
            version, scores = scores_of(answer, len(part), self._client.url)
            if version not in self.versions:
                self.versions.append(version)
            if found and scores.keys() != found.keys():
                raise PlaceError(f"{self.url} answers with several versions, whose labels differ")
            for label, each in scores.items():
                found.setdefault(label, []).extend(each)
        return {label: np.array(each, np.float32) for label, each in found.items()}

    def close(self) -> None:
        self._client.close()
