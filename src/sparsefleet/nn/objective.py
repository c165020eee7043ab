"""What a model's output means: its loss, its click probabilities, and the outputs that metrics see by name.

A model may define `loss(output, labels) -> scalar` and `probabilities(output) -> [B]` itself, and then return what it
likes: a dict of tensors gives metrics these outputs by name. Otherwise an output of shape [B, 2] is a pair of softmax
logits, [B] or [B, 1] a logit, and the loss the cross-entropy summed over the batch.

A model for several labels has their names in `label_names`; its output is then [B, L], a logit for each of them, and
the loss the sum of their cross-entropies, each over the samples that have the label (NaN: it is not defined). Metrics
see each label's probability by its name; `probability` is that of the first. Weights of samples multiply their losses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import click_loss
from sparsefleet.metrics.base import PROBABILITY, Outputs

Output = Any
"""What a model returns: a tensor, a dict of tensors by name, or what its own `loss` and `probabilities` understand."""
Loss = Callable[..., torch.Tensor]
"""loss(output, labels), or loss(output, labels, weights) where samples may have weights."""
Probabilities = Callable[[Output], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch's loss and predictions, and how to go backward from them."""

    loss: float
    probabilities: F32
    """[B]"""
    backward: Callable[[], None]
    named: Mapping[str, F32] | None = None
    """The outputs of a model that returns a dict of them."""

    def outputs(self) -> Outputs:
        """As metrics get them."""
        return {PROBABILITY: self.probabilities, **(self.named or {})}


def label_names(model: nn.Module) -> tuple[str, ...] | None:
    """The labels of a model for several of them; None for a model of one label."""
    names: tuple[str, ...] | None = getattr(model, "label_names", None)
    return names


def judge(model: nn.Module, output: Output, labels: F32, weights: F32 | None = None) -> Judged:
    """Loss, probabilities and the way back, for a model in training. labels: [B] or [B, L]; weights: [B]."""
    names = label_names(model)
    check_labels(model, labels)
    own: Loss | None = getattr(model, "loss", None)
    if callable(own):
        loss = _own_loss(model, own, output, labels, weights)
        with torch.no_grad():
            probabilities = probabilities_of(model, _detached(output), len(labels))
        return Judged(loss.item(), probabilities, loss.backward, named_outputs(output, model))
    if names is not None:
        of_labels = _label_logits(output, names, len(labels))
        loss_sum, all_probabilities, gradient = label_loss(of_labels, labels.reshape(of_labels.shape), weights)
        root: torch.Tensor = _WithGradient.apply(output, gradient)  # type: ignore[no-untyped-call]
        return Judged(loss_sum, all_probabilities[:, 0].copy(), root.backward, _by_name(all_probabilities, names))
    # Cross-entropy in one kernel: on a few hundred numbers torch's graph of small operations costs more than the sums.
    logits = _logits(output, len(labels))
    loss_sum, probabilities, gradient = click_loss(logits, labels)
    if weights is not None:
        loss_sum, gradient = _weighted(logits, labels, weights, gradient)
    root = _WithGradient.apply(output, gradient)  # type: ignore[no-untyped-call]
    return Judged(loss_sum, probabilities, root.backward)


def check_labels(model: nn.Module, labels: F32) -> None:
    """Refuse samples that have more or fewer labels than the model."""
    names = label_names(model)
    found, wanted = 1 if labels.ndim == 1 else labels.shape[1], 1 if names is None else len(names)
    if found != wanted and not (names is None and callable(getattr(model, "loss", None))):
        told = f" ({', '.join(names)})" if names else ""
        raise ConfigError(
            f"{type(model).__qualname__} learns {wanted} label{'s' * (wanted > 1)}{told}; the samples have {found}: "
            "choose a model for several labels (sparsefleet models), or a schema with the labels that this one learns"
        )


def _own_loss(model: nn.Module, own: Loss, output: Output, labels: F32, weights: F32 | None) -> torch.Tensor:
    given = [torch.from_numpy(labels)]
    if "weights" in inspect.signature(own).parameters:
        given += [torch.ones(len(labels)) if weights is None else torch.from_numpy(weights)]
    elif weights is not None:
        raise ConfigError(
            f"the samples have weights, and {type(model).__qualname__}.loss(output, labels) does not take them: let it "
            "take weights [B] as a third argument, or leave the weights out of the schema"
        )
    loss = own(output, *given)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError(
            f"{type(model).__qualname__}.loss(output, labels) must return a tensor of one number, the loss summed "
            f"over the batch; got {_described(loss)}"
        )
    return loss


def label_loss(logits: F32, labels: F32, weights: F32 | None) -> tuple[float, F32, F32]:
    """[B, L] logits: cross-entropy summed over labels that are defined, probabilities and gradient [B, L]."""
    defined = ~np.isnan(labels)
    wanted: F32 = np.where(defined, labels, np.float32(0))
    share = defined if weights is None else defined * weights[:, None]
    near: F32 = np.exp(-np.abs(logits))
    losses = np.maximum(logits, 0) - logits * wanted + np.log1p(near)
    probabilities: F32 = np.where(logits >= 0, np.float32(1), near) / (np.float32(1) + near)
    gradient: F32 = np.ascontiguousarray((probabilities - wanted) * share, np.float32)
    return float((losses * share).sum(dtype=np.float64)), probabilities, gradient


def _weighted(logits: F32, labels: F32, weights: F32, gradient: F32) -> tuple[float, F32]:
    """The sum of losses and the gradient, where samples count by their weights."""
    margin = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    loss_sum, _, _ = label_loss(margin[:, None], labels[:, None], weights)
    if np.isnan(labels).any():  # one label that is not there is an error of the data, with weights as without
        loss_sum = float("nan")
    return loss_sum, gradient * weights[:, None]


def _by_name(probabilities: F32, names: tuple[str, ...]) -> dict[str, F32]:
    return {name: np.ascontiguousarray(probabilities[:, at]) for at, name in enumerate(names)}


class _WithGradient(torch.autograd.Function):
    """A scalar to go backward from, whose gradient is known already.

    `output.backward(gradient)` says the same, but imports torch's symbolic shapes the first time: 0.3 s of training.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, gradient: F32) -> torch.Tensor:
        ctx.gradient = torch.from_numpy(gradient).view(output.shape).to(output.dtype)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def named_outputs(output: Output, model: nn.Module | None = None) -> Mapping[str, F32] | None:
    """The tensors of a model that returns a dict of them, as arrays; of a model for several labels the probability of
    each; None for any other model.
    """
    if model is not None and (names := label_names(model)) is not None:
        return _by_name(_sigmoid(_label_logits(output, names)), names)
    if not isinstance(output, Mapping):
        return None
    if PROBABILITY in output:
        raise ConfigError(
            f"the model returns an output {PROBABILITY!r}; that name is for what its probabilities(output) returns: "
            "call the output otherwise"
        )
    return {name: tensor.detach().float().numpy() for name, tensor in output.items() if torch.is_tensor(tensor)}


def probabilities_of(model: nn.Module, output: Output, samples: int) -> F32:
    """[B] click probabilities, where B = `samples`."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        mine = own(output)
        _check_probabilities(model, mine, samples)
        probabilities: F32 = mine.detach().float().reshape(-1).contiguous().numpy()
        return probabilities
    if (names := label_names(model)) is not None:
        return _sigmoid(_label_logits(output, names, samples)[:, 0])
    logits = _logits(output, samples)
    return click_loss(logits, np.zeros(len(logits), np.float32))[1]


def probability_graph(model: nn.Module, output: Output) -> torch.Tensor:
    """[B] click probabilities in torch's own operations: what an exporter traces."""
    own: Probabilities | None = getattr(model, "probabilities", None)
    if callable(own):
        mine = own(output)
        _check_probabilities(model, mine, None)
        return mine.float().reshape(-1)
    if label_names(model) is not None:
        return torch.sigmoid(output[:, 0].float())
    _check_shape(output)
    output = output.float()
    if output.dim() == 2 and output.shape[1] == 2:
        return torch.softmax(output, 1)[:, 1]
    return torch.sigmoid(output.reshape(-1))


def label_graph(model: nn.Module, output: Output) -> list[torch.Tensor]:
    """Of a model for several labels the probability [B] of each, in torch's own operations."""
    return [torch.sigmoid(output[:, at].float()) for at, _ in enumerate(label_names(model) or ())]


def _sigmoid(logits: F32) -> F32:
    values: F32 = torch.sigmoid(torch.from_numpy(np.ascontiguousarray(logits))).numpy()
    return values


def _label_logits(output: Output, names: tuple[str, ...], samples: int | None = None) -> F32:
    """[B, L], where B = `samples`, if that is known."""
    fits = torch.is_tensor(output) and output.dim() == 2 and output.shape[1] == len(names)
    if not fits or (samples is not None and len(output) != samples):
        raise ConfigError(
            f"a model for the labels {', '.join(names)} must return a logit for each, [B, {len(names)}]; got "
            f"{_described(output)}{_here(samples)}"
        )
    values: F32 = output.detach().float().contiguous().numpy()
    return values


def _logits(output: Output, samples: int) -> F32:
    """[B, 2] or [B, 1], where B = `samples`."""
    _check_shape(output, samples)
    values: F32 = output.detach().float().contiguous().view(len(output), -1).numpy()
    return values


def _here(samples: int | None) -> str:
    return "" if samples is None else f" where B is {samples}"


def _check_shape(output: Output, samples: int | None = None) -> None:
    """`samples` None: while a model is traced, the length of a batch is a symbol."""
    fits = torch.is_tensor(output) and (output.dim() == 1 or (output.dim() == 2 and output.shape[1] in (1, 2)))
    if not fits or (samples is not None and len(output) != samples):
        raise ConfigError(
            f"a model's output must be [B, 2], [B, 1] or [B]; got {_described(output)}{_here(samples)}. "
            "Give the model a loss(output, labels) and a probabilities(output) of its own for anything else."
        )


def _check_probabilities(model: nn.Module, mine: Any, samples: int | None) -> None:
    """`samples` None: while a model is traced, the length of a batch is a symbol."""
    fits = torch.is_tensor(mine) and (mine.dim() == 1 or (mine.dim() == 2 and mine.shape[1] == 1))
    if not fits or (samples is not None and len(mine) != samples):
        batch = "" if samples is None else f" (here {samples})"
        raise ConfigError(
            f"{type(model).__qualname__}.probabilities(output) must return one click probability for each of the B "
            f"samples{batch}, [B] or [B, 1]; got {_described(mine)}. Other outputs go to metrics by name: let forward "
            "return a dict of tensors."
        )


def _detached(output: Output) -> Output:
    if torch.is_tensor(output):
        return output.detach()
    if isinstance(output, Mapping):
        return {name: _detached(part) for name, part in output.items()}
    return output


def _described(output: Any) -> str:
    """What came, in words: shapes, and names where there are any."""
    if torch.is_tensor(output):
        return str(tuple(output.shape))
    if isinstance(output, Mapping):
        return f"outputs by name: {', '.join(f'{name} {_described(part)}' for name, part in output.items())}"
    if isinstance(output, tuple | list):
        return f"{len(output)} outputs: {', '.join(map(_described, output))}"
    return type(output).__name__
