"""A small one of each model, and samples for it: five slots, two numbers, one or two labels."""

from __future__ import annotations

import numpy as np
import torch

from sparsefleet import models
from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.models import SHELF, ModelInputs, Rebuildable

SLOTS = ("user", "item", "shop", "place", "clicked")
KEYS = 40
DENSE = 2
LABELS = ("click", "buy")
SCHEMA = Schema(dense=(DenseFeature("age"), DenseFeature("price")), slots=tuple(map(Slot, SLOTS)))
SETTINGS = {
    "ctr_dnn": {"embedding_size": 4, "hidden": (8, 6)},
    "lr": {},
    "fm": {"embedding_size": 4, "init_range": 0.5},
    "fwfm": {"embedding_size": 4, "init_range": 0.5},
    "dnn": {"embedding_size": 4, "hidden": (8, 6)},
    "widedeep": {"embedding_size": 4, "hidden": (8, 6)},
    "deepfm": {"embedding_size": 4, "hidden": (8, 6)},
    "dcnv2": {"embedding_size": 4, "hidden": (8, 6), "cross_layers": 2},
    "xdeepfm": {"embedding_size": 4, "hidden": (8, 6), "cin": (5, 3)},
    "autoint": {"embedding_size": 4, "attention_layers": 2, "heads": 2, "head_size": 3, "hidden": (6,)},
    "din": {
        "embedding_size": 4,
        "hidden": (8, 6),
        "attention": (5, 3),
        "history": ("clicked",),
        "target": ("item",),
        "max_history": 3,
    },
    "shared_bottom": {"embedding_size": 4, "hidden": (8,), "towers": (5,)},
    "mmoe": {"embedding_size": 4, "hidden": (8, 6), "experts": 3, "towers": (5,)},
    "esmm": {"embedding_size": 4, "hidden": (8,)},
}
MANY = ("shared_bottom", "mmoe", "esmm")


def small(name: str, seed: int = 0, **more: object) -> Rebuildable:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind, settings = SHELF[name], {**SETTINGS[name], **more}
        if name == "ctr_dnn":
            return models.CTRDNN(SLOTS, DENSE, models.CTRDNNConfig(**settings))
        inputs = ModelInputs(SLOTS, DENSE, LABELS if name in MANY else ("label",))
        model = kind(inputs, kind.Settings(**settings))
        for parameter in model.parameters():  # zeros would hide errors
            torch.nn.init.normal_(parameter, std=0.3)
        return model


def samples(count: int, labels: int = 1, seed: int = 0, keys: int = KEYS) -> Batch:
    """Bags of 0 to 5 values; of two labels the second is not defined where the first is 0."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 6, count * len(SLOTS))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = random.integers(0, keys, offsets[-1]).astype(np.uint64)
    clicks = (random.random(count) < 0.4).astype(np.float32)
    if labels == 2:
        buys = np.where(clicks == 1, random.random(count) < 0.5, np.nan)
        clicks = np.stack([clicks, buys], 1).astype(np.float32)
    return Batch(clicks, random.standard_normal((count, DENSE)).astype(np.float32), values, offsets, SLOTS)
