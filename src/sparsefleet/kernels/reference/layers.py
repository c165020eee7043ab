"""NumPy twin of `kernels.layers`. Denormals are zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32
from sparsefleet.kernels.float_mode import flushed


class Interactions:
    def __init__(self, samples: int, slots: int, dim: int, maps: Sequence[int]) -> None:
        self._taken: list[F32] = []
        """What each layer got: [B, H, D]."""

    def forward(self, vectors: F32, weights: Sequence[F32], biases: Sequence[F32], out: F32) -> None:
        with flushed():
            x, at = vectors, 0
            self._taken = []
            for weight, bias in zip(weights, biases, strict=True):
                self._taken.append(x)
                x = np.einsum("mhs,bhd,bsd->bmd", _by_maps(weight, vectors), x, vectors) + bias[:, None]
                out[:, at : at + len(bias)] = x.sum(axis=2)
                at += len(bias)

    def backward(
        self,
        vectors: F32,
        weights: Sequence[F32],
        grad_out: F32,
        grad_weights: Sequence[F32],
        grad_biases: Sequence[F32],
        grad_vectors: F32,
    ) -> None:
        with flushed():
            grad_vectors[:] = 0
            back: F32 = np.zeros((1, 1, 1), np.float32)
            at = grad_out.shape[1]
            for i in reversed(range(len(weights))):
                at -= len(weights[i])
                here = grad_out[:, at : at + len(weights[i]), None] + back  # [B, M, D], or [B, M, 1] of the last layer
                grad = np.broadcast_to(here, (*here.shape[:2], vectors.shape[2]))
                grad_biases[i][:] = grad.sum(axis=(0, 2))
                products = self._taken[i][:, :, None] * vectors[:, None]  # [B, H, S, D]
                grad_weights[i][:] = np.einsum("bmd,bhsd->mhs", grad, products).reshape(weights[i].shape)
                grad_products = np.einsum("bmd,mhs->bhsd", grad, _by_maps(weights[i], vectors))
                grad_vectors += (grad_products * self._taken[i][:, :, None]).sum(axis=1)
                back = (grad_products * vectors[:, None]).sum(axis=2)
            grad_vectors += back  # the first layer's maps are the vectors themselves


def _by_maps(weight: F32, vectors: F32) -> F32:
    """[M, H * S] as [M, H, S]."""
    return weight.reshape(len(weight), -1, vectors.shape[1])


class FieldAttention:
    def __init__(self, fields: int, dim: int, heads: int, head_dim: int, scale: float) -> None:
        self._heads, self._scale = heads, np.float32(scale)

    def _parts(self, fields: F32, weight: F32) -> tuple[F32, F32, F32, F32, F32]:
        """Queries, keys and values [B, H, F, A], the ways past [B, F, H * A], and the weights [B, H, F, F]."""
        query, key, value, past = np.split(fields @ weight.T, 4, axis=2)
        query, key, value = (_split(each, self._heads) for each in (query, key, value))
        products = query @ key.swapaxes(2, 3) * self._scale
        shares = np.exp(products - products.max(axis=3, keepdims=True))
        return query, key, value, past, shares / shares.sum(axis=3, keepdims=True)

    def forward(self, fields: F32, weight: F32, out: F32) -> None:
        with flushed():
            _, _, value, past, shares = self._parts(fields, weight)
            out[:] = np.maximum(_joined(shares @ value) + past, 0)

    def backward(self, fields: F32, weight: F32, out: F32, grad_out: F32, grad_weight: F32, grad_fields: F32) -> None:
        with flushed():
            query, key, value, _, shares = self._parts(fields, weight)
            past = grad_out * (out > 0)
            attended = _split(past, self._heads)
            of_shares = attended @ value.swapaxes(2, 3)
            products = shares * (of_shares - (of_shares * shares).sum(axis=3, keepdims=True)) * self._scale
            heads = (products @ key, products.swapaxes(2, 3) @ query, shares.swapaxes(2, 3) @ attended)
            grad = np.concatenate([*map(_joined, heads), past], axis=2)
            grad_weight[:] = np.einsum("bfm,bfd->md", grad, fields)
            grad_fields[:] = grad @ weight


def _split(values: F32, heads: int) -> F32:
    """[B, F, H * A] as [B, H, F, A]."""
    samples, fields, made = values.shape
    return values.reshape(samples, fields, heads, made // heads).transpose(0, 2, 1, 3)


def _joined(values: F32) -> F32:
    """[B, H, F, A] as [B, F, H * A]."""
    samples, heads, fields, each = values.shape
    return values.transpose(0, 2, 1, 3).reshape(samples, fields, heads * each)


class HistoryAttention:
    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        self._dim = dim

    def _layers(
        self, value: F32, target: F32, weights: Sequence[F32], biases: Sequence[F32]
    ) -> tuple[list[F32], list[F32]]:
        """Of N values: what each layer of the tower takes, and what it makes, before relu."""
        taken, made = [np.concatenate([value, target, value - target, value * target], axis=1)], []
        for weight, bias in zip(weights, biases, strict=True):
            made.append(taken[-1] @ weight.T + bias)
            taken.append(np.maximum(made[-1], 0))
        return taken[:-1], made

    def forward(
        self,
        vectors: F32,
        mask: npt.NDArray[np.bool_],
        target: F32,
        weights: Sequence[F32],
        biases: Sequence[F32],
        out: F32,
    ) -> None:
        with flushed():
            samples, value = np.nonzero(mask)[0], vectors[mask]
            _, made = self._layers(value, target[samples], weights, biases)
            out[:] = 0
            np.add.at(out, samples, made[-1] * value)

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
        with flushed():
            samples, value = np.nonzero(mask)[0], vectors[mask]
            beside, of_sum = target[samples], grad_out[samples]
            taken, made = self._layers(value, beside, weights, biases)
            grad = (of_sum * value).sum(axis=1, keepdims=True)
            for i in reversed(range(len(weights))):
                grad_weights[i][:] = grad.T @ taken[i]
                grad_biases[i][:] = grad.sum(axis=0)
                grad = grad @ weights[i]
                if i:
                    grad = grad * (taken[i] > 0)
            of_value, of_target, difference, product = np.split(grad, 4, axis=1)
            grad_vectors[:], grad_target[:] = 0, 0
            grad_vectors[mask] = made[-1] * of_sum + of_value + difference + product * beside
            np.add.at(grad_target, samples, of_target - difference + product * value)


def mix_forward(made: Sequence[F32], logits: Sequence[F32], shares: Sequence[F32], mixed: Sequence[F32]) -> None:
    with flushed():
        for of_gate, share, out in zip(logits, shares, mixed, strict=True):
            powers = np.exp(of_gate - of_gate.max(axis=1, keepdims=True))
            share[:] = powers / powers.sum(axis=1, keepdims=True)
            out[:] = sum(share[:, e : e + 1] * np.maximum(each, 0) for e, each in enumerate(made))


def mix_backward(
    made: Sequence[F32],
    shares: Sequence[F32],
    grad_mixed: Sequence[F32],
    grad_made: Sequence[F32],
    grad_logits: Sequence[F32],
) -> None:
    with flushed():
        for share, grad, out in zip(shares, grad_mixed, grad_logits, strict=True):
            of_share = np.stack([(grad * np.maximum(each, 0)).sum(axis=1) for each in made], axis=1)
            out[:] = share * (of_share - (share * of_share).sum(axis=1, keepdims=True))
        for e, each in enumerate(made):
            grads = (share[:, e : e + 1] * grad for share, grad in zip(shares, grad_mixed, strict=True))
            grad_made[e][:] = sum(grads) * (each > 0)
