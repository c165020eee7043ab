"""SavePolicy: when a run saves, and where."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.core.errors import ConfigError


@dataclass(frozen=True)
class SavePolicy:
    folder: str
    """Checkpoints go to folder/step-…; `latest` in it names the newest."""
    every_steps: int | None = None
    """Also save after every so many batches; of several trainers, those of the first."""
    every_epoch: bool = True
    on_interrupt: bool = True
    """Save when the user stops the run."""
    keep: int = 3
    """How many checkpoints stay."""
    failures: int = 3
    """So many saves that fail one after the other end the run; fewer only warn, and the last checkpoint stands."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"every_steps={self.every_steps} must be 1 or above")
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep} must be 1 or above")
        if self.failures < 1:
            raise ConfigError(f"failures={self.failures} must be 1 or above")

    def due(self, step: int) -> bool:
        """Whether it is time to save after this step."""
        return self.every_steps is not None and step % self.every_steps == 0
