"""Every model of the shelf against plain torch: outputs, gradients of rows and parameters; and ONNX against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_torch import NETWORKS
from small_models import DENSE, KEYS, MANY, SETTINGS, SLOTS, samples, small

from sparsefleet.export.network import export_network
from sparsefleet.models import SHELF
from sparsefleet.nn.dense_block import DenseBlock
from sparsefleet.nn.direct_pass import direct_pass
from sparsefleet.nn.embedding import attach, tables
from sparsefleet.nn.objective import judge
from sparsefleet.store.base import Done
from sparsefleet.train.row_source import BatchRows

VARIANTS = [
    *((name, {}) for name in SHELF),
    ("dcnv2", {"rank": 3}),
    ("dcnv2", {"structure": "stacked"}),
    ("din", {"softmax": True}),
]


def test_all_of_the_shelf_is_tried():
    assert SETTINGS.keys() == NETWORKS.keys() == SHELF.keys()


@pytest.mark.parametrize(("name", "more"), VARIANTS)
def test_outputs_and_gradients(name, more):
    model = small(name, **more)
    ((_, users),) = tables(model).items()
    random = np.random.default_rng(1)
    rows = (0.5 * random.standard_normal((KEYS, users[0].dim))).astype(np.float32)
    source = BatchRows(model, lambda _, keys: Done(rows[keys.astype(int)]), training=True)
    attach(model, source)
    table = torch.from_numpy(rows.copy()).requires_grad_()
    mine = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
    plain = NETWORKS[name]
    more_of_plain = more if name == "din" else {}
    batch = samples(17)
    got, want = model(batch), plain(table, mine, batch, **more_of_plain)
    torch.testing.assert_close(got, want.reshape(got.shape), rtol=1e-5, atol=1e-5)
    along = torch.randn(got.shape, generator=torch.Generator().manual_seed(2))
    (got * along).sum().backward()
    (want.reshape(got.shape) * along).sum().backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, mine[key].grad, rtol=1e-5, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )
    (asked,) = source.gradients().values()
    gradient = np.zeros_like(rows)
    gradient[asked.keys.astype(int)] = asked.rows
    np.testing.assert_allclose(gradient, table.grad.numpy(), rtol=1e-5, atol=1e-5)


DIRECT = ("ctr_dnn", "dnn", "lr", "fm", "widedeep", "deepfm")
"""Those that train without autograd."""


@pytest.mark.parametrize("name", DIRECT)
def test_the_pass_without_autograd(name):
    model = small(name)
    ((_, users),) = tables(model).items()
    rows = (0.5 * np.random.default_rng(1).standard_normal((KEYS, users[0].dim))).astype(np.float32)
    source = BatchRows(model, lambda _, keys: Done(rows[keys.astype(int)]), training=True)
    block = DenseBlock(model)
    gradients = block.gradients_for(model)
    straight = direct_pass(model, source, gradients, half=False)
    assert straight is not None
    table = torch.from_numpy(rows.copy()).requires_grad_()
    mine = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
    for seed in (0, 1):  # the second pass finds the buffers of the first
        batch = samples(17, seed=seed)
        judged = straight.forward(batch)
        judged.backward()
        for leaf in (table, *mine.values()):
            leaf.grad = None
        logits, labels = NETWORKS[name](table, mine, batch), torch.from_numpy(batch.labels)
        margin = logits[:, 1] - logits[:, 0] if name == "ctr_dnn" else logits.reshape(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(margin, labels, reduction="sum")
        loss.backward()
        assert judged.loss == pytest.approx(loss.item(), rel=1e-5)
        np.testing.assert_allclose(judged.probabilities, torch.sigmoid(margin).detach().numpy(), rtol=1e-5, atol=1e-6)
        for piece in block.pieces:
            got = gradients.flat[piece.start : piece.stop].reshape(piece.shape)
            want = mine[piece.name].grad.numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=piece.name)
        (asked,) = source.gradients().values()
        gradient = np.zeros_like(rows)
        gradient[asked.keys.astype(int)] = asked.rows
        np.testing.assert_allclose(gradient, table.grad.numpy(), rtol=1e-5, atol=1e-5)
        source.end()


IN_ONNX = [*VARIANTS, ("deepfm", {"dropout": 0.5, "batch_norm": True})]


@pytest.mark.parametrize(
    ("name", "more"),
    [pytest.param(*each, marks=[] if each[0] == "mmoe" else pytest.mark.slow) for each in IN_ONNX],
)
def test_the_exported_graph_computes_the_same(name, more):
    network = export_network(small(name, **more).eval(), SLOTS, DENSE)
    assert network.difference <= 1e-6
    if name in MANY:
        assert [label for label, _ in network.info.labels] == ["click", "buy"]


@pytest.mark.parametrize("name", MANY)
def test_the_loss_of_several_labels_heeds_what_is_not_defined_and_weights(name):
    model = small(name)
    batch = samples(23, labels=2)
    output = torch.randn(23, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = np.random.default_rng(0).random(23).astype(np.float32)
    judged = judge(model, output, batch.labels, weights)
    judged.backward()
    p = torch.sigmoid(output.detach()).requires_grad_()
    loss = torch.zeros(())
    for sample, (click, buy) in enumerate(batch.labels.tolist()):
        chances = [(p[sample, 0], click)]
        if name == "esmm":  # over all samples: a click and a buy
            chances.append((p[sample, 0] * p[sample, 1], click and buy))
        elif click:
            chances.append((p[sample, 1], buy))
        for chance, happened in chances:
            loss = loss - weights[sample] * torch.log(chance if happened else 1 - chance)
    loss.backward()
    assert judged.loss == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(output.grad, p.grad * (p * (1 - p)).detach(), rtol=1e-4, atol=1e-5)
    assert judged.named.keys() == {"click", "buy"}
    np.testing.assert_allclose(judged.probabilities, p.detach().numpy()[:, 0], atol=1e-6)
    np.testing.assert_allclose(judged.named["buy"], p.detach().numpy()[:, 1], atol=1e-6)
