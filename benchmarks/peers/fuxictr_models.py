"""FuxiCTR's own training loop on networks of the shelf; run by the Python that has fuxictr.

Usage: python fuxictr_models.py MODEL SETTINGS SECONDS THREADS BATCH NUMBERS: prints a JSON object with samples a
second, by the clock and by the processor, and the size of the network.

SETTINGS is JSON: ours, of the same network. The networks are put together as in FuxiCTR's model zoo, which its package
leaves out: its layers, its loop (`train_step`), its Adam over whole tables of a million rows together, 26 slots. The
numbers are its numeric features: in AutoInt and in linear terms its `FeatureEmbedding` makes a vector or a weight of
each; all other layers get them as they are, beside the vectors, as in its DLRM and as ours do. A history is padded to
its longest, as its loader does.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import OrderedDict

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import (
    CompressedInteractionNet,
    CrossNetV2,
    DIN_Attention,
    FactorizationMachine,
    FeatureEmbedding,
    FeatureEmbeddingDict,
    InnerProductInteraction,
    LogisticRegression,
    MLP_Block,
    ScaledDotProductAttention,
)
from fuxictr.pytorch.models import BaseModel, MultiTaskModel

FIELDS, ROWS, HISTORY = 26, 1_000_000, 20
SLOTS = [f"C{index}" for index in range(FIELDS)]
PARTS = {
    "ctr_dnn": ("deep",),
    "lr": ("lr",),
    "fm": ("fm",),
    "fwfm": ("lr", "pairs"),
    "dnn": ("deep",),
    "widedeep": ("lr", "deep"),
    "deepfm": ("fm", "deep"),
    "dcnv2": ("cross", "deep"),
    "xdeepfm": ("lr", "cin", "deep"),
    "autoint": ("attention",),
    "din": ("history", "deep"),
}
MANY = ("shared_bottom", "mmoe", "esmm")


class FieldAttention(torch.nn.Module):
    """AutoInt's interacting layer, as in FuxiCTR's model zoo: its attention, heads side by side, a way past them."""

    def __init__(self, dim, heads, head_size):
        super().__init__()
        self.heads, self.size = heads, head_size
        made = heads * head_size
        self.query, self.key, self.value, self.past = (torch.nn.Linear(dim, made, bias=False) for _ in range(4))
        self.attention = ScaledDotProductAttention()

    def forward(self, x):
        parts = (
            each(x).view(len(x), -1, self.heads, self.size).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        out, _ = self.attention(*parts)
        return torch.relu(out.transpose(1, 2).reshape(len(x), -1, self.heads * self.size) + self.past(x))


def numbers_of(feature_map):
    return [name for name, spec in feature_map.features.items() if spec["type"] == "numeric"]


def beside(vectors, features, numbers):
    """Vectors [B, S, D] or [B, S * D] and numbers, as they are, side by side."""
    return torch.cat([vectors.flatten(start_dim=1), *(features[name].view(-1, 1) for name in numbers)], 1)


class Network(BaseModel):
    def __init__(self, feature_map, parts, settings):
        super().__init__(feature_map, model_root=tempfile.gettempdir(), metrics=["AUC"], verbose=0)
        self.parts, self.numbers = parts, numbers_of(feature_map)
        dim, hidden = settings.get("embedding_size", 1), list(settings.get("hidden", ()))
        width = FIELDS * dim + len(self.numbers)
        if parts != ("lr",):
            # The numbers are fields for the attention alone.
            fields = None if "attention" in parts else SLOTS
            self.embedding_layer = FeatureEmbedding(feature_map, dim, required_feature_columns=fields)
        if "lr" in parts:
            self.lr = LogisticRegression(feature_map, use_bias=True)
        if "fm" in parts:
            self.fm = FactorizationMachine(feature_map)
        if "pairs" in parts:
            self.products = InnerProductInteraction(FIELDS, output="inner_product")
            self.pairs = torch.nn.Linear(FIELDS * (FIELDS - 1) // 2, 1, bias=False)
        if "deep" in parts:
            self.deep = MLP_Block(input_dim=width, output_dim=1, hidden_units=hidden)
        if "cross" in parts:
            self.cross = CrossNetV2(width, settings["cross_layers"])
            self.crossed = torch.nn.Linear(width, 1, bias=False)  # the layers beside it have one
        if "cin" in parts:
            self.cin = CompressedInteractionNet(FIELDS, list(settings["cin"]), output_dim=1)
            self.cin.fc = torch.nn.Linear(self.cin.fc.in_features, 1, bias=False)  # the layers beside it have one
        if "attention" in parts:
            heads, size = settings["heads"], settings["head_size"]
            widths = [dim] + [heads * size] * (settings["attention_layers"] - 1)
            self.attention = torch.nn.Sequential(*(FieldAttention(each, heads, size) for each in widths))
            self.last = torch.nn.Linear((FIELDS + len(self.numbers)) * heads * size, 1)
        if "history" in parts:
            self.interest = DIN_Attention(dim, attention_units=list(settings["attention"]))
        self.compile("adam", "binary_crossentropy", 1e-3)

    def forward(self, inputs):
        features = self.get_inputs(inputs)
        logits = 0
        if "lr" in self.parts:
            logits = logits + self.lr(features)
        if "history" in self.parts:
            found = self.embedding_layer.embedding_layer(features)
            *others, last = SLOTS
            history = self.interest(found["C0"], found[last], features[last] != 0)
            flat = beside(torch.cat([*(found[slot] for slot in others), history], 1), features, self.numbers)
        elif self.parts != ("lr",):
            embedded = self.embedding_layer(features)
        if "deep" in self.parts and "history" not in self.parts:
            flat = beside(embedded, features, self.numbers)
        if "fm" in self.parts:
            logits = logits + self.fm(features, embedded)
        if "pairs" in self.parts:
            logits = logits + self.pairs(self.products(embedded))
        if "deep" in self.parts:
            logits = logits + self.deep(flat)
        if "cross" in self.parts:
            logits = logits + self.crossed(self.cross(flat))
        if "cin" in self.parts:
            logits = logits + self.cin(embedded)
        if "attention" in self.parts:
            logits = logits + self.last(self.attention(embedded).flatten(start_dim=1))
        return {"y_pred": self.output_activation(logits)}


class ManyLabels(MultiTaskModel):
    def __init__(self, feature_map, name, settings):
        super().__init__(
            feature_map,
            task=["binary_classification"] * 2,
            num_tasks=2,
            model_root=tempfile.gettempdir(),
            metrics=["AUC"],
            verbose=0,
        )
        self.name, hidden = name, list(settings["hidden"])
        dim = settings["embedding_size"]
        self.numbers = numbers_of(feature_map)
        width, towers = FIELDS * dim + len(self.numbers), list(settings.get("towers", ()))
        self.embedding_layer = FeatureEmbedding(feature_map, dim, required_feature_columns=SLOTS)
        experts = {"shared_bottom": 1, "mmoe": settings.get("experts", 0), "esmm": 0}[name]
        self.experts = torch.nn.ModuleList(
            MLP_Block(input_dim=width, hidden_units=hidden, hidden_activations="relu") for _ in range(experts)
        )
        self.gates = torch.nn.ModuleList(torch.nn.Linear(width, experts) for _ in range(2 if name == "mmoe" else 0))
        inner, widths = (hidden[-1], towers) if experts else (width, hidden)
        self.towers = torch.nn.ModuleList(
            MLP_Block(input_dim=inner, output_dim=1, hidden_units=widths) for _ in range(2)
        )
        self.compile("adam", "binary_crossentropy", 1e-3)

    def forward(self, inputs):
        features = self.get_inputs(inputs)
        flat = beside(self.embedding_layer(features), features, self.numbers)
        if self.name == "esmm":
            shared = [flat, flat]
        elif self.name == "shared_bottom":
            shared = [self.experts[0](flat)] * 2
        else:
            made = torch.stack([expert(flat) for expert in self.experts], dim=1)
            shared = [(torch.softmax(gate(flat), 1).unsqueeze(2) * made).sum(1) for gate in self.gates]
        chances = [
            activation(tower(each))
            for activation, tower, each in zip(self.output_activation, self.towers, shared, strict=True)
        ]
        if self.name == "esmm":
            chances[1] = chances[0] * chances[1]
        return {f"{label}_pred": chance for label, chance in zip(self.feature_map.labels, chances, strict=True)}


def network_size(made: torch.nn.Module) -> dict[str, int]:
    """How many values a key of the first slot has in all tables, and how many weights there are besides tables."""
    tables = [each for each in made.modules() if isinstance(each, torch.nn.Embedding)]
    trained = sum(each.numel() for each in made.parameters() if each.requires_grad)
    widths = [
        each.embedding_layers["C0"].embedding_dim for each in made.modules() if isinstance(each, FeatureEmbeddingDict)
    ]
    return {"row": sum(widths), "weights": trained - sum(each.weight.numel() for each in tables)}


def main(name: str, settings: dict, seconds: float, threads: int, size: int, numbers: int) -> None:
    if name not in PARTS and name not in MANY:
        sys.exit(f"no {name} here; there are {', '.join([*PARTS, *MANY])}")
    feature_map = FeatureMap("made", tempfile.gettempdir())
    feature_map.labels, feature_map.num_fields = (["click", "buy"] if name in MANY else ["label"]), FIELDS + numbers
    rows = ROWS // FIELDS
    feature_map.features = OrderedDict(
        (slot, {"type": "categorical", "source": "", "vocab_size": rows}) for slot in SLOTS
    )
    last = SLOTS[-1]
    if name == "din":
        feature_map.features[last] = {
            "type": "sequence",
            "source": "",
            "vocab_size": rows,
            "max_len": HISTORY,
            "feature_encoder": None,
            "share_embedding": "C0",
        }
    for index in range(numbers):
        feature_map.features[f"I{index}"] = {"type": "numeric", "source": ""}
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    made = ManyLabels(feature_map, name, settings) if name in MANY else Network(feature_map, PARTS[name], settings)
    made._max_gradient_norm = 10.0  # what its `fit` sets
    made.train()
    random = np.random.default_rng(0)
    batches = []
    for _ in range(8):
        batch = {slot: random.zipf(1.2, size) % rows for slot in SLOTS}
        batch |= {f"I{index}": random.random(size).astype(np.float32) for index in range(numbers)}
        if name == "din":
            there = np.arange(HISTORY) < random.integers(0, HISTORY + 1, size)[:, None]
            batch[last] = np.where(there, random.zipf(1.2, (size, HISTORY)) % (rows - 1) + 1, 0)
        for label in feature_map.labels:
            batch[label] = (random.random(size) < 0.3).astype(np.float32)
        batches.append({key: torch.from_numpy(value) for key, value in batch.items()})
    made.train_step(batches[0])
    begin, begin_busy, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        made.train_step(batches[steps % len(batches)])
        steps += 1
    by_clock, by_processor = time.perf_counter() - begin, time.process_time() - begin_busy
    speed = {"by_clock": steps * size / by_clock, "by_processor": steps * size / by_processor}
    print(json.dumps(speed | network_size(made)))


if __name__ == "__main__":
    name, settings, seconds, *counts = sys.argv[1:]
    main(name, json.loads(settings), float(seconds), *map(int, counts))
