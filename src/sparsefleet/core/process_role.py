"""What this process is in its job, and what it trains. `fleet` and `minimize` say so; layers below may ask."""

from __future__ import annotations

from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note


class ProcessRole:
    part_of_job: str = ""
    """In words, which part of a job of several processes this one plays; empty for a process by itself."""
    optimizer: Any = None
    """The optimizer that `fleet.distributed_optimizer` made last, or that was last told to minimize a loss."""
    model: Any = None
    """The model whose loss an optimizer was last told to minimize."""
    trainer: Any = None
    """The trainer of a process by itself that works with `optimizer`, where a script has not made one by name."""

    def forget(self) -> None:
        """A script begins anew."""
        self.part_of_job = ""
        self.optimizer = self.model = self.trainer = None

    def minimize(self, optimizer: Any, loss: Any) -> None:
        """`optimizer.minimize(loss)`, as Fluid's scripts have it: this optimizer trains the model of this loss."""
        # A model's own loss(output, labels) is a method of it; a model by itself is meant just as clearly.
        is_model = hasattr(loss, "named_parameters")
        model = loss if is_model else getattr(loss, "model", None) or getattr(loss, "__self__", None)
        if model is None:
            raise ConfigError(
                f"minimize({loss!r:.60}): give it model.loss, the loss of a model of this process; or leave minimize "
                "out and hand optimizer and model to a Trainer: Trainer(optimizer).fit(model, data)"
            )
        if optimizer is not self.optimizer:
            self.optimizer, self.trainer = optimizer, None
        self.model = model
        note("optimizer.minimize(loss) builds nothing here: it says which model this optimizer trains")


PROCESS_ROLE = ProcessRole()
