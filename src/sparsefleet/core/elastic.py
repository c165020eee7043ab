"""Elastic: how many trainers a job may have while it runs.

```
SPARSEFLEET_ELASTIC=1:8     every process: from 1 to 8 trainers; PADDLE_TRAINERS_NUM says how many it begins with
```
A trainer process more, with the same variables and without PADDLE_TRAINER_ID, takes part: server 0 gives it a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.core.errors import ConfigError

VARIABLE = "SPARSEFLEET_ELASTIC"


@dataclass(frozen=True, slots=True)
class Elastic:
    least: int
    """Fewer than these are not waited for: the job ends with an error."""
    most: int
    """Trainers have numbers below this."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigError(f"elastic {self}: from at least 1 to as many or more trainers, such as 1:8")

    @staticmethod
    def parse(source: str, text: str) -> Elastic:
        """MIN:MAX; `source` names where the text came from."""
        least, colon, most = text.strip().partition(":")
        if not colon or not (least.isascii() and least.isdigit() and most.isascii() and most.isdigit()):
            raise ConfigError(f"{source}={text!r} is not MIN:MAX trainers; write 1:8, say")
        return Elastic(int(least), int(most))

    def check_start(self, workers: int) -> None:
        if not self.least <= workers <= self.most:
            raise ConfigError(f"a job of {self} trainers cannot begin with {workers}")

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"
