"""ESMM: clicks, and conversions after a click, learned from all samples instead of the clicked ones alone."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.models.base import ModelInputs, SchemaModel
from sparsefleet.models.common import DeepSettings, deep_input, deep_of, deep_width, vectors_of
from sparsefleet.nn import dense_input


class ESMM(SchemaModel):
    """Batch -> [B, 2] logits: of a click, and of a conversion given a click.

    The labels are (click, conversion); a conversion without a click does not count, whether it is 0 there or not
    defined. The loss is that of the click and that of click and conversion together, both over all samples, so that the
    conversion's part learns where nobody clicked, too. Of both probabilities the product is that of a conversion.
    """

    name: ClassVar[str] = "ESMM"
    summary = "Two labels (click, conversion): the conversion given a click, learned from all samples."
    reference = "Ma et al., Entire Space Multi-Task Model: Estimating Post-Click Conversion Rate, SIGIR 2018"
    Settings = DeepSettings
    many_labels = True

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__(inputs, settings)
        if len(inputs.labels) != 2:
            raise ConfigError(
                "ESMM learns two labels, the click and what follows on it; the schema has "
                f"{', '.join(inputs.labels)}: label names the click, and more_labels the one other"
            )
        self.embedding = vectors_of(inputs, self.settings, weights=False)
        width = deep_width(inputs, self.settings)
        self.towers = nn.ModuleList(deep_of(width, self.settings) for _ in inputs.labels)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = deep_input(self.embedding(batch), dense_input(batch))
        return torch.cat([tower(x) for tower in self.towers], 1)

    def loss(self, output: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        click, given_click = output[:, 0], output[:, 1]
        # The logit of sigmoid(a) * sigmoid(b), without the product's rounding: -log(exp(-a) + exp(-b) + exp(-a-b)).
        both = -torch.logsumexp(torch.stack([-click, -given_click, -click - given_click]), 0)
        clicked = labels[:, 0]
        converted = torch.where(clicked == 0, torch.zeros_like(clicked), clicked * labels[:, 1])
        return _masked(click, clicked, weights) + _masked(both, converted, weights)


def _masked(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the samples whose label is defined."""
    defined = ~labels.isnan()
    losses = functional.binary_cross_entropy_with_logits(logits, torch.where(defined, labels, 0.0), reduction="none")
    return (losses * weights * defined).sum()
