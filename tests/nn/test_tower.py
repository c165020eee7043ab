"""DenseTower is nn.Linear and relu, to the last rounding."""

import copy

import pytest
import torch
from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.nn import DenseTower
from sparsefleet.nn.dense_block import DenseBlock


def plain(tower):
    layers = []
    for layer in tower.layers:
        layers += [copy.deepcopy(layer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def assert_same_gradients(tower, twin, **tolerance):
    for mine, other in zip(tower.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, **tolerance)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_values_and_gradients(rows):
    torch.manual_seed(0)
    tower = DenseTower([9, 16, 12, 2])
    twin = plain(tower)
    for _ in range(3):  # buffers are used again
        x = torch.randn(rows, 9, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        mine, other = tower(x), twin(y)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        tower.zero_grad(), twin.zero_grad()
        mine.square().sum().backward()
        other.square().sum().backward()
        assert_same_gradients(tower, twin, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_two_forwards_before_a_backward_do_not_share_buffers():
    tower = DenseTower([3, 8, 1])
    twin = plain(tower)
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    (tower(a).sum() + 2 * tower(b).sum()).backward()
    (twin(a).sum() + 2 * twin(b).sum()).backward()
    assert_same_gradients(tower, twin, rtol=1e-5, atol=1e-6)


def test_gradients_accumulate_until_reset():
    tower = DenseTower([3, 8, 1])
    twin = plain(tower)
    for _ in range(2):
        x = torch.randn(5, 3)
        tower(x).sum().backward()
        twin(x).sum().backward()
    assert_same_gradients(tower, twin, rtol=1e-5, atol=1e-6)


def test_without_gradients_it_gives_the_same_values():
    tower = DenseTower([3, 8, 2])
    x = torch.randn(4, 3)
    with torch.no_grad():
        silent = tower(x)
    torch.testing.assert_close(silent, tower(x))


def test_frozen_parameters_stay_without_gradient():
    tower = DenseTower([3, 8, 2])
    tower.layers[0].weight.requires_grad_(False)
    tower(torch.randn(4, 3)).sum().backward()
    assert tower.layers[0].weight.grad is None
    assert tower.layers[1].weight.grad is not None


def test_bf16_is_close_and_keeps_float32_gradients():
    torch.manual_seed(0)
    tower = DenseTower([20, 32, 2])
    twin = plain(tower)
    x = torch.randn(50, 20, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tower(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, twin(x), rtol=0.05, atol=0.05)
    out.sum().backward()
    assert tower.layers[0].weight.grad.dtype == torch.float32
    assert x.grad.dtype == torch.float32


def test_gradients_land_in_the_dense_block():
    tower = DenseTower([3, 8, 2])
    twin = plain(tower)
    block = DenseBlock(tower)
    gradients = block.gradients_for(tower)
    for _ in range(2):
        x = torch.randn(4, 3)
        gradients.reset(), twin.zero_grad()
        tower(x).sum().backward()
        twin(x).sum().backward()
        flat = torch.cat([p.grad.reshape(-1) for p in twin.parameters()])
        torch.testing.assert_close(torch.from_numpy(gradients.collect()), flat, rtol=1e-5, atol=1e-6)
        assert tower.layers[0].weight.grad.data_ptr() == gradients.flat.ctypes.data  # no copy was made
    block.values[:] = 0
    assert not tower.layers[0].weight.any()


@pytest.mark.parametrize("sizes", [[3], [], [3, 0, 2]])
def test_nonsense_is_refused(sizes):
    with pytest.raises(ConfigError, match="a tower needs"):
        DenseTower(sizes)
