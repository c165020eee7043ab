"""FuxiCTR's own training loop on given samples and first weights; run by the Python that has fuxictr.

Usage: python fuxictr_loop.py FOLDER MODEL: FOLDER/given.npz holds samples and weights; prints a JSON object with the
loss of each step (without what L2 adds to it) and samples a second.

DNN and DeepFM are as in FuxiCTR's model zoo, which its package leaves out: its layers, its loop (`train_step`), its
optimizer, L2 over whole tables, gradients clipped at norm 10.
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
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel


class DNN(BaseModel):
    def __init__(self, feature_map, dim, hidden, rate, **settings):
        super().__init__(feature_map, **settings)
        self.embedding_layer = FeatureEmbedding(feature_map, dim)
        self.mlp = MLP_Block(input_dim=feature_map.num_fields * dim, output_dim=1, hidden_units=hidden)
        self.add_parts(feature_map)
        self.compile("adam", "binary_crossentropy", rate)

    def add_parts(self, feature_map):
        pass

    def forward(self, inputs):
        embedded = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        return {"y_pred": self.output_activation(self.mlp(embedded))}

    def add_loss(self, return_dict, y_true):
        self.plain_loss = super().add_loss(return_dict, y_true)
        return self.plain_loss


class DeepFM(DNN):
    def add_parts(self, feature_map):
        self.fm = FactorizationMachine(feature_map)

    def forward(self, inputs):
        features = self.get_inputs(inputs)
        embedded = self.embedding_layer(features)
        logits = self.fm(features, embedded) + self.mlp(embedded.flatten(start_dim=1))
        return {"y_pred": self.output_activation(logits)}


def main(folder: str, name: str) -> None:
    torch.set_num_threads(1)
    given = np.load(f"{folder}/given.npz")
    ids, labels = given["ids"], given["labels"]  # [steps, B, S], [steps, B]
    fields = ids.shape[2]
    feature_map = FeatureMap("given", folder)
    feature_map.labels, feature_map.num_fields = ["label"], fields
    vocabulary, dim = given["rows_0"].shape
    feature_map.features = OrderedDict(
        (f"C{i}", {"type": "categorical", "source": "", "vocab_size": vocabulary}) for i in range(fields)
    )
    model = {"dnn": DNN, "deepfm": DeepFM}[name](
        feature_map,
        dim,
        [int(width) for width in given["hidden"]],
        float(given["rate"]),
        embedding_regularizer=float(given["l2"]) or None,
        model_root=tempfile.gettempdir(),
        metrics=["AUC"],
        verbose=0,
    )
    with torch.no_grad():
        for i in range(fields):
            model.embedding_layer.embedding_layer.embedding_layers[f"C{i}"].weight.copy_(
                torch.from_numpy(given[f"rows_{i}"])
            )
            if name == "deepfm":
                wide = model.fm.lr_layer.embedding_layer.embedding_layer.embedding_layers[f"C{i}"].weight
                wide.copy_(torch.from_numpy(given[f"wide_{i}"]))
        layers = [layer for layer in model.mlp.mlp if isinstance(layer, torch.nn.Linear)]
        for i, layer in enumerate(layers):
            layer.weight.copy_(torch.from_numpy(given[f"weight_{i}"]))
            layer.bias.copy_(torch.from_numpy(given[f"bias_{i}"]))
    model._max_gradient_norm = float(given["clip_norm"])
    model.train()
    losses, ends = [], []
    for step in range(len(ids)):
        batch = {f"C{i}": torch.from_numpy(ids[step, :, i]) for i in range(fields)}
        model.train_step({**batch, "label": torch.from_numpy(labels[step])})
        losses.append(float(model.plain_loss))
        ends.append(time.perf_counter())
    speed = (len(ends) - 1) * ids.shape[1] / max(ends[-1] - ends[0], 1e-9)  # the first step has to warm up
    print(json.dumps({"losses": losses, "samples_per_s": speed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
