"""A mixture of experts for several labels (MMoE): shared stacks of layers, and for each label a gate that weighs them.

Legend: B samples, d features, E experts, W width of an expert's output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.nn.deep import Deep, initialise


class GatedExperts(nn.Module):
    """[B, d] -> for each gate [B, W]: the experts' outputs, weighed by softmax of a linear map of the input."""

    def __init__(
        self,
        features: int,
        widths: Sequence[int],
        experts: int,
        gates: int,
        *,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            Deep([features, *widths], dropout=dropout, batch_norm=batch_norm) for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(features, experts) for _ in range(gates))
        initialise(self.gates)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        made = functional.relu(torch.stack([expert(x) for expert in self.experts], 1))  # [B, E, W]
        shares = [torch.softmax(gate(x), 1) for gate in self.gates]
        return [(share.unsqueeze(2) * made).sum(1) for share in shares]
