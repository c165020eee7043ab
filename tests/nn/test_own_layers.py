"""Interactions and attention of our own kernels are those of torch's operations, to rounding."""

import copy

import pytest
import torch

from sparsefleet.core.errors import ConfigError
from sparsefleet.nn import CompressedInteractions, FieldAttention
from sparsefleet.nn.dense_block import DenseBlock
from sparsefleet.nn.history_attention import HistoryAttention
from sparsefleet.nn.sequence_embedding import Sequence
from sparsefleet.nn.tower import layer_by_layer


class HistoryOfFields(HistoryAttention):
    """[B, F, D] -> [B, D]: the last field is the target, the others are a history that lacks every third value."""

    def forward(self, fields):
        history = fields[:, :-1]
        samples, places = torch.arange(len(history)), torch.arange(history.shape[1])
        return super().forward(Sequence(history, (samples[:, None] + places) % 3 > 0), fields[:, -1])


CASES = {
    "interactions": (lambda: CompressedInteractions(5, [4, 3]), (5, 6)),
    "attention": (lambda: FieldAttention(6, 2, 8), (5, 6)),
    "history": (lambda: HistoryOfFields(6, [8, 3]), (5, 6)),
    "scaled attention": (lambda: FieldAttention(6, 3, 4, scale=True), (5, 6)),
}
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    make, shape = CASES[request.param]
    return make(), shape


def gradients(module, *inputs):
    module.zero_grad()
    outputs = [module(x) for x in inputs]
    sum((index + 1) * out.square().sum() for index, out in enumerate(outputs)).backward()
    return outputs, [x.grad for x in inputs] + [parameter.grad for parameter in module.parameters()]


def assert_same(module, twin, *inputs):
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    outputs, mine = gradients(module, *inputs)
    with layer_by_layer():
        expected, others = gradients(twin, *copies)
    for one, other in zip([*outputs, *mine], [*expected, *others], strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("samples", [1, 8, 33])
def test_values_and_gradients(case, samples):
    module, shape = case
    twin = copy.deepcopy(module)
    for _ in range(2):  # buffers are used again
        assert_same(module, twin, torch.randn(samples, *shape, requires_grad=True))


def test_two_forwards_before_a_backward(case):
    module, shape = case
    inputs = [torch.randn(7, *shape, requires_grad=True) for _ in range(2)]
    assert_same(module, copy.deepcopy(module), *inputs)


def test_inputs_may_lie_apart(case):
    module, (one, other) = case
    x = torch.randn(9, other, one).transpose(1, 2)
    with torch.no_grad(), layer_by_layer():
        expected = module(x)
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected, **CLOSE)


def test_scoring_keeps_a_workspace(case):
    module, shape = case
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(4, *shape))
    assert len(module._free) == 1


def test_gradients_go_to_their_targets(case):
    module, shape = case
    block = DenseBlock(module)
    flat = block.gradients_for(module)
    flat.reset()
    module(torch.randn(4, *shape)).square().sum().backward()
    addresses = [parameter.grad.data_ptr() for parameter in module.parameters()]
    assert addresses == [flat.flat.ctypes.data + 4 * piece.start for piece in block.pieces]


def test_frozen_parameters_get_no_gradient(case):
    module, shape = case
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    x = torch.randn(4, *shape, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_copy_has_buffers_of_its_own(case):
    module, shape = case
    module(torch.randn(4, *shape)).sum().backward()
    assert module._free
    assert not copy.deepcopy(module)._free


def test_interactions_go_backward_once():
    out = CompressedInteractions(5, [4])(torch.randn(3, 5, 6)).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        out.backward()


@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 5), (2, 3, 5, 6)])
@pytest.mark.parametrize("name", ["interactions", "attention", "scaled attention"])
def test_inputs_of_other_shapes_are_named(name, shape):
    module = CASES[name][0]()
    with pytest.raises(ConfigError, match=rf"take.*; the input is \[{', '.join(map(str, shape))}\]"):
        module(torch.zeros(shape))
