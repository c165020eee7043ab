"""FuxiCTR's own training loop on networks of the shelf; run by the Python that has fuxictr.

Usage: python fuxictr_models.py MODEL SECONDS: prints a JSON object with samples a second.

Networks are as in FuxiCTR's model zoo, which its package leaves out: its layers, its loop (`train_step`), its Adam over
whole tables of a million rows together, batch 1000, 26 slots; without the 13 numbers, which only helps it.
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
    FactorizationMachine,
    FeatureEmbedding,
    LogisticRegression,
    MLP_Block,
)
from fuxictr.pytorch.models import BaseModel

FIELDS, ROWS, BATCH, DIM, HIDDEN = 26, 1_000_000, 1000, 10, [400, 400, 400]
PARTS = {
    "lr": ("lr",),
    "fm": ("fm",),
    "dnn": ("deep",),
    "ctr_dnn": ("deep",),
    "widedeep": ("lr", "deep"),
    "deepfm": ("fm", "deep"),
    "dcnv2": ("cross", "deep"),
    "xdeepfm": ("lr", "cin", "deep"),
}


class Network(BaseModel):
    def __init__(self, feature_map, parts):
        super().__init__(feature_map, model_root=tempfile.gettempdir(), metrics=["AUC"], verbose=0)
        self.parts = parts
        width = FIELDS * DIM
        if parts != ("lr",):
            self.embedding_layer = FeatureEmbedding(feature_map, DIM)
        if "lr" in parts:
            self.lr = LogisticRegression(feature_map, use_bias=True)
        if "fm" in parts:
            self.fm = FactorizationMachine(feature_map)
        if "deep" in parts:
            self.deep = MLP_Block(input_dim=width, output_dim=1, hidden_units=HIDDEN)
        if "cross" in parts:
            self.cross = CrossNetV2(width, 3)
            self.crossed = torch.nn.Linear(width, 1)
        if "cin" in parts:
            self.cin = CompressedInteractionNet(FIELDS, [16, 16, 16], output_dim=1)
        self.compile("adam", "binary_crossentropy", 1e-3)

    def forward(self, inputs):
        features = self.get_inputs(inputs)
        logits = 0
        if "lr" in self.parts:
            logits = logits + self.lr(features)
        if self.parts != ("lr",):
            embedded = self.embedding_layer(features)
            flat = embedded.flatten(start_dim=1)
        if "fm" in self.parts:
            logits = logits + self.fm(features, embedded)
        if "deep" in self.parts:
            logits = logits + self.deep(flat)
        if "cross" in self.parts:
            logits = logits + self.crossed(self.cross(flat))
        if "cin" in self.parts:
            logits = logits + self.cin(embedded)
        return {"y_pred": self.output_activation(logits)}


def main(name: str, seconds: float) -> None:
    if name not in PARTS:
        sys.exit(f"no {name} here; there are {', '.join(PARTS)}")
    feature_map = FeatureMap("made", tempfile.gettempdir())
    feature_map.labels, feature_map.num_fields = ["label"], FIELDS
    rows = ROWS // FIELDS
    feature_map.features = OrderedDict(
        (f"C{index}", {"type": "categorical", "source": "", "vocab_size": rows}) for index in range(FIELDS)
    )
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    model = Network(feature_map, PARTS[name])
    model.train()
    random = np.random.default_rng(0)
    batches = [
        {f"C{index}": torch.from_numpy(random.zipf(1.2, BATCH) % rows) for index in range(FIELDS)}
        | {"label": torch.from_numpy((random.random(BATCH) < 0.3).astype(np.float32))}
        for _ in range(8)
    ]
    model.train_step(batches[0])
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        model.train_step(batches[steps % len(batches)])
        steps += 1
    print(json.dumps({"samples_per_s": steps * BATCH / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
