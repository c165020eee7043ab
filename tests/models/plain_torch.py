"""Each model once more, in plain torch and as its formulas stand on paper: loops over slots, pairs and values.

A network is a function of a table (a matrix, row k of key k), a model's parameters by name, and a batch.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from small_models import SETTINGS, SLOTS
from torch.nn import functional

P = dict[str, torch.Tensor]


def pooled(table, batch, slot):
    keys, offsets = batch.slot(slot)
    bags = [
        table[keys[a:b].astype(int)].sum(0) if b > a else table.new_zeros(table.shape[1]) for a, b in pairwise(offsets)
    ]
    return torch.stack(bags)


def slots_of(table, batch, slots=SLOTS):
    return [pooled(table, batch, slot) for slot in slots]


def numbers(batch):
    return torch.from_numpy(batch.dense)


def tower(p: P, name, x):
    """Linear layers, relu between them."""
    layers = [key for key in p if key.startswith(f"{name}.layers.") and key.endswith("weight")]
    for index, key in enumerate(layers):
        x = functional.linear(x, p[key], p[key.replace("weight", "bias")])
        x = x if index == len(layers) - 1 else x.clamp(min=0)
    return x


def deep(p, x, name="deep"):
    return tower(p, f"{name}.tower", x)


def linear(p, rows, batch):
    return sum(row[:, 0] for row in rows) + p["linear.bias"] + numbers(batch) @ p["linear.numbers"]


def ctr_dnn(table, p, batch):
    return tower(p, "tower", torch.cat([*slots_of(table, batch), numbers(batch)], 1))


dnn = ctr_dnn


def lr(table, p, batch):
    return linear(p, slots_of(table, batch), batch)


def _pairs(vectors):
    return [(i, j) for i in range(len(vectors)) for j in range(i + 1, len(vectors))]


def fm(table, p, batch):
    rows = slots_of(table, batch)
    vectors = [row[:, 1:] for row in rows]
    return linear(p, rows, batch) + sum((vectors[i] * vectors[j]).sum(1) for i, j in _pairs(vectors))


def fwfm(table, p, batch):
    rows = slots_of(table, batch)
    vectors = [row[:, 1:] for row in rows]
    weighted = [p["pairs.pairs"][at] * (vectors[i] * vectors[j]).sum(1) for at, (i, j) in enumerate(_pairs(vectors))]
    return linear(p, rows, batch) + sum(weighted)


def _deep_part(p, vectors, batch):
    return deep(p, torch.cat([*vectors, numbers(batch)], 1)).squeeze(1)


def widedeep(table, p, batch):
    rows = slots_of(table, batch)
    return linear(p, rows, batch) + _deep_part(p, [row[:, 1:] for row in rows], batch)


def deepfm(table, p, batch):
    return fm(table, p, batch) + _deep_part(p, [row[:, 1:] for row in slots_of(table, batch)], batch)


def dcnv2(table, p, batch, stacked=False):
    first = torch.cat([*slots_of(table, batch), numbers(batch)], 1)
    x = first
    for index in range(SETTINGS["dcnv2"]["cross_layers"]):
        name = f"cross.layers.{index}"
        if f"{name}.1.layers.0.weight" in p:
            made = (x @ p[f"{name}.0.weight"].T) @ p[f"{name}.1.layers.0.weight"].T + p[f"{name}.1.layers.0.bias"]
        else:
            made = x @ p[f"{name}.0.layers.0.weight"].T + p[f"{name}.0.layers.0.bias"]
        x = first * made + x
    if "crossed.weight" not in p:
        return deep(p, x).squeeze(1)
    return (deep(p, first) + x @ p["crossed.weight"].T).squeeze(1)


def xdeepfm(table, p, batch):
    rows = slots_of(table, batch)
    vectors = torch.stack([row[:, 1:] for row in rows], 1)  # [B, S, D]
    x, out = vectors, []
    for index, maps in enumerate(SETTINGS["xdeepfm"]["cin"]):
        weight = p[f"cin.mixing.{index}.layers.0.weight"].view(maps, x.shape[1], vectors.shape[1])
        x = torch.einsum("bhd,bsd,ohs->bod", x, vectors, weight) + p[f"cin.mixing.{index}.layers.0.bias"][:, None]
        out.append(x.sum(2))
    compressed = torch.cat(out, 1) @ p["compressed.weight"].T
    return linear(p, rows, batch) + compressed.squeeze(1) + _deep_part(p, [row[:, 1:] for row in rows], batch)


def autoint(table, p, batch):
    vectors = slots_of(table, batch)
    dense = numbers(batch)
    fields = vectors + [dense[:, [n]] * p["numbers.vectors"][n] for n in range(dense.shape[1])]
    x = torch.stack(fields, 1)
    heads, size = SETTINGS["autoint"]["heads"], SETTINGS["autoint"]["head_size"]
    for index in range(SETTINGS["autoint"]["attention_layers"]):
        query, key, value, past = p[f"attention.{index}.project.weight"].chunk(4)
        made = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = torch.einsum("bfa,bga->bfg", x @ query[part].T, x @ key[part].T)
            made.append(scores.softmax(2) @ (x @ value[part].T))
        x = (torch.cat(made, 2) + x @ past.T).clamp(min=0)
    out = x.flatten(1) @ p["last.weight"].T + p["last.bias"]
    return out.squeeze(1) + _deep_part(p, vectors, batch)


def din(table, p, batch, softmax=False):
    others = slots_of(table, batch, SLOTS[:-1])
    keys, offsets = batch.slot("clicked")
    interests = []
    for sample, (a, b) in enumerate(pairwise(offsets)):
        target = others[SLOTS.index("item")][sample]
        values = [table[int(key)] for key in keys[a:b][-SETTINGS["din"]["max_history"] :]]
        weights = [
            deep(p, torch.cat([value, target, value - target, value * target])[None], "attention.0.unit")[0]
            for value in values
        ]
        if softmax and weights:
            weights = torch.stack(weights).softmax(0)
        total = [weight * value for weight, value in zip(weights, values, strict=True)]
        interests.append(sum(total) if total else torch.zeros_like(target))
    return deep(p, torch.cat([*others, torch.stack(interests), numbers(batch)], 1)).squeeze(1)


def shared_bottom(table, p, batch):
    shared = deep(p, torch.cat([*slots_of(table, batch), numbers(batch)], 1), "bottom").clamp(min=0)
    return torch.cat([deep(p, shared, f"towers.{at}") for at in range(2)], 1)


def mmoe(table, p, batch):
    x = torch.cat([*slots_of(table, batch), numbers(batch)], 1)
    experts = [deep(p, x, f"experts.experts.{at}").clamp(min=0) for at in range(SETTINGS["mmoe"]["experts"])]
    out = []
    for label in range(2):
        gate = functional.linear(x, p[f"experts.gates.{label}.weight"], p[f"experts.gates.{label}.bias"]).softmax(1)
        mixed = sum(gate[:, [at]] * expert for at, expert in enumerate(experts))
        out.append(deep(p, mixed, f"towers.{label}"))
    return torch.cat(out, 1)


def esmm(table, p, batch):
    x = torch.cat([*slots_of(table, batch), numbers(batch)], 1)
    return torch.cat([deep(p, x, f"towers.{at}") for at in range(2)], 1)


NETWORKS = {name: value for name, value in list(globals().items()) if name in SETTINGS}
