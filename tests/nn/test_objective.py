"""The loss by hand is torch's cross-entropy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.errors import ConfigError
from sparsefleet.nn.objective import judge, probabilities_of

LABELS = (np.random.default_rng(0).random(40) < 0.3).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 30.0, 200.0])
@pytest.mark.parametrize("shape", [(40, 2), (40, 1), (40,)])
def test_loss_gradient_and_probabilities(shape, scale):
    torch.manual_seed(0)
    values = torch.randn(shape) * scale
    mine, other = values.clone().requires_grad_(), values.clone().requires_grad_()
    labels = torch.from_numpy(LABELS)
    if shape[-1] == 2:
        loss = functional.cross_entropy(other, labels.long(), reduction="sum")
        expected = torch.softmax(values, 1)[:, 1]
    else:
        loss = functional.binary_cross_entropy_with_logits(other.reshape(-1), labels, reduction="sum")
        expected = torch.sigmoid(values.reshape(-1))
    loss.backward()
    judged = judge(nn.Identity(), mine, LABELS)
    judged.backward()
    assert judged.loss == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(judged.probabilities, expected.numpy(), rtol=1e-4, atol=1e-6)
    assert judged.probabilities.dtype == np.float32


def test_a_model_may_bring_its_own():
    class Own(nn.Module):
        def loss(self, output, labels):
            return (output.squeeze(1) - labels).square().sum()

        def probabilities(self, output):
            return output.squeeze(1).clamp(0, 1)

    output = torch.full((40, 1), 0.25, requires_grad=True)
    judged = judge(Own(), output, LABELS)
    judged.backward()
    assert judged.loss == pytest.approx(float(np.square(0.25 - LABELS).sum()))
    np.testing.assert_array_equal(judged.probabilities, np.full(40, 0.25, np.float32))
    np.testing.assert_allclose(output.grad.numpy()[:, 0], 2 * (0.25 - LABELS))


def test_other_shapes_are_refused():
    with pytest.raises(ConfigError, match=r"must be \[B, 2\].*got \(4, 3\)"):
        probabilities_of(nn.Identity(), torch.zeros(4, 3), 4)
