"""fluid.layers: `data` declares an input, for `dataset.set_use_var`. Networks are torch modules; the rest says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsefleet.core.errors import ConfigError

_INSTEAD = {
    "embedding": "sf.nn.SparseEmbedding('SparseFeatFactors', dim, slots); the same name shares a table",
    "concat": "torch.cat([self.embedding(batch), sf.nn.dense_input(batch)], dim=1)",
    "fc": "torch.nn.Linear, or all of them at once: sf.nn.DenseTower([in, 400, 400, 400, 2])",
    "cross_entropy": "nothing: it is the loss of a model that returns [B, 2] or [B] logits",
    "reduce_sum": "nothing: a batch's loss is a sum over its samples",
    "mean": "nothing: a batch's loss is a sum over its samples",
    "accuracy": "fetch_list=['accuracy']; every run counts it",
    **{
        name: f"the optimizer's schedule: fluid.optimizer.Adam(rate, schedule=sf.optim.schedule.{schedule}(…))"
        for name, schedule in (
            ("exponential_decay", "ExponentialDecay"),
            ("inverse_time_decay", "InverseTimeDecay"),
            ("polynomial_decay", "PolynomialDecay"),
            ("linear_lr_warmup", "LinearWarmup"),
        )
    },
    "auc": "fetch_list=['auc', 'batch_auc']; every run counts them, Trainer(num_thresholds=…, slide_steps=…) says how",
}


@dataclass(frozen=True)
class Input:
    """A declared input: what `set_use_var` reads of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    lod_level: int = 0


def data(
    name: str, shape: Sequence[int] = (1,), dtype: str = "float32", lod_level: int = 0, append_batch_size: bool = True
) -> Input:
    """An input by name: floating ones are dense, of the width that `shape` ends with; others are feature keys."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"layers.data: name={name!r} must be the name of an input")
    return Input(name, tuple(shape), str(dtype), lod_level)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    instead = _INSTEAD.get(name, "the module or function of torch that does it")
    raise ConfigError(
        f"fluid.layers.{name} is not here: a network is a torch.nn.Module. Write {instead}; sf.CTRDNN() is the whole "
        "network of the CTR documents (docs/from-paddle.md)"
    )
