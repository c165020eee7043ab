"""Layers around towers: interactions of vectors, attention of fields and over a history, mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32
from sparsefleet.kernels.levels import native as _native


class Interactions:
    """xDeepFM's compressed interaction network. Buffers of one forward and backward pass over B samples; one thread.

    Legend: B samples, S slots, D values of a vector, H maps that a layer takes (the first one: S), M that it makes.
    """

    def __init__(self, samples: int, slots: int, dim: int, maps: Sequence[int]) -> None:
        """maps: M of each layer."""
        self._native = _native.Interactions(samples, slots, dim, list(maps))

    def forward(self, vectors: F32, weights: Sequence[F32], biases: Sequence[F32], out: F32) -> None:
        """out [B, sum of M]: each layer's maps, summed over D. vectors [B, S, D]; weights[l] [M, H * S], biases [M]."""
        self._native.forward(vectors, weights, biases, out)

    def backward(
        self,
        vectors: F32,
        weights: Sequence[F32],
        grad_out: F32,
        grad_weights: Sequence[F32],
        grad_biases: Sequence[F32],
        grad_vectors: F32,
    ) -> None:
        """After `forward` of the same vectors: write the gradients of all that went in."""
        self._native.backward(vectors, weights, grad_out, grad_weights, grad_biases, grad_vectors)


class FieldAttention:
    """AutoInt's interacting layer. Keeps scratch space, and nothing from forward to backward; one thread at a time.

    Legend: B samples, F fields, D values of a field, H heads, A values of a head.
    """

    def __init__(self, fields: int, dim: int, heads: int, head_dim: int, scale: float) -> None:
        self._native = _native.FieldAttention(fields, dim, heads, head_dim, scale)

    def forward(self, fields: F32, weight: F32, out: F32) -> None:
        """out [B, F, H * A] from fields [B, F, D]; weight [4 * H * A, D] makes queries, keys, values, ways past."""
        self._native.forward(fields, weight, out)

    def backward(self, fields: F32, weight: F32, out: F32, grad_out: F32, grad_weight: F32, grad_fields: F32) -> None:
        """out: what `forward` made of the same fields. Writes the gradients of the weight and of the fields."""
        self._native.backward(fields, weight, out, grad_out, grad_weight, grad_fields)


class HistoryAttention:
    """DIN's attention. Keeps scratch space, and nothing from forward to backward; one thread at a time.

    A tower looks at (value, target, their difference, their product) and gives the weight of a history's value.

    Legend: B samples, L places of a history, D values of a row.
    """

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        """hidden: widths of the tower's relu layers."""
        self._native = _native.HistoryAttention(dim, list(hidden))

    def forward(
        self,
        vectors: F32,
        mask: npt.NDArray[np.bool_],
        target: F32,
        weights: Sequence[F32],
        biases: Sequence[F32],
        out: F32,
    ) -> None:
        """out [B, D]: the vectors [B, L, D], where the mask [B, L] is True, summed by weight. target [B, D]."""
        self._native.forward(vectors, mask.view(np.uint8), target, weights, biases, out)

    def backward(
        self,
        vectors: F32,
        mask: npt.NDArray[np.bool_],
        target: F32,
        weights: Sequence[F32],
        biases: Sequence[F32],
        grad_out: F32,
        grad_weights: Sequence[F32],
        grad_biases: Sequence[F32],
        grad_vectors: F32,
        grad_target: F32,
    ) -> None:
        """Write the gradients of all that went into `forward`; where there is no value, the vector's is zero."""
        self._native.backward(
            vectors,
            mask.view(np.uint8),
            target,
            weights,
            biases,
            grad_out,
            grad_weights,
            grad_biases,
            grad_vectors,
            grad_target,
        )


def mix_forward(made: Sequence[F32], logits: Sequence[F32], shares: Sequence[F32], mixed: Sequence[F32]) -> None:
    """MMoE's gates: for each gate the experts' outputs, behind relu, weighed by softmax of the gate's logits.

    made: of each of E experts [B, W], before relu; logits: of each gate [B, E]. Writes for each gate the weights
    `shares` [B, E] and the mixture `mixed` [B, W].
    """
    _native.mix_forward(made, logits, shares, mixed)


def mix_backward(
    made: Sequence[F32],
    shares: Sequence[F32],
    grad_mixed: Sequence[F32],
    grad_made: Sequence[F32],
    grad_logits: Sequence[F32],
) -> None:
    """shares: as `mix_forward` wrote them. Writes the gradients of what the experts made and of the logits."""
    _native.mix_backward(made, shares, grad_mixed, grad_made, grad_logits)
