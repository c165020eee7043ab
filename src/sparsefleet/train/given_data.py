"""What a trainer asks of readers that it is given: threads as was said, and samples read as the model knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.data.base import Reader

VOUCH = "open_reader(…, same_inputs=True), or --same-inputs at the command line"


def threads_for(data: Reader, given: int | None, otherwise: int = 1) -> int:
    """`given`: Trainer(threads=…); the reader may have been told too (`set_thread`), and both must mean the same."""
    asked = data.asked_threads
    if given is not None and asked is not None and given != asked:
        raise ConfigError(
            f"Trainer(threads={given}), but the dataset says set_thread({asked}): both are the number of training "
            "threads; give one of them, or the same number"
        )
    return given or asked or otherwise


class TrainedOn:
    """How the samples were read that the trainer's model knows, once something is known of it."""

    def __init__(self) -> None:
        self._where, self._inputs = "", None  # type: str, Inputs | None

    def learn(self, where: str, inputs: Inputs | None) -> None:
        if inputs is not None:
            self._where, self._inputs = where, inputs

    def learn_saved(self, where: str, saved: Mapping[str, Any] | None) -> None:
        if saved is not None:
            self.learn(where, Inputs.from_dict(saved, f"{where}: inputs", CheckpointError))

    def check(self, data: Reader) -> None:
        """Refuse samples that are read otherwise."""
        if self._inputs is not None:
            self._inputs.require_same(data.inputs(), self._where, VOUCH)
