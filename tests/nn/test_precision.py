"""bf16 never fails and is never chosen where it has no gain."""

import logging

import pytest
import torch
from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.nn import DenseTower, precision
from sparsefleet.nn.precision import Half, computing_in, decide, tower_in_half


def never():
    raise AssertionError("nothing to try here")


@pytest.fixture
def machine(monkeypatch):
    """Makes this machine one of another kind."""

    def become(half: Half) -> None:
        monkeypatch.setattr(precision, "this_machine", lambda: half)

    return become


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_levels_without_an_instruction_compute_in_float32(level):
    half = decide(level, never, never)
    assert (half.tower, half.autocast) == (False, False)
    assert half.note == f"bf16: this processor (level {level}) gains nothing by it; computing in float32"


def test_a_processor_that_is_slower_with_it_computes_in_float32():
    half = decide("avx512bf16", lambda: 0.57, never)
    assert (half.tower, half.autocast) == (False, False)
    assert half.note == "bf16: 0.57 times as fast as float32 on this processor; computing in float32"


def test_where_torch_cannot_the_tower_still_does():
    half = decide("amx", lambda: 8.0, lambda: "could not create a primitive")
    assert (half.tower, half.autocast) == (True, False)
    assert "could not create a primitive" in half.note


def test_where_all_works_nothing_is_said():
    assert decide("amx", lambda: 8.0, lambda: None) == Half(True, True, None)


def test_a_users_layers_stay_float32_where_torch_cannot(machine):
    machine(Half(True, False, None))
    with computing_in("bf16"):
        assert tower_in_half()
        assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == torch.float32
    assert not tower_in_half()


def test_a_users_layers_follow_where_torch_can(machine):
    if precision.torch_bf16_error() is not None:
        pytest.skip(f"torch's own bfloat16 does not work here: {precision.torch_bf16_error()}")
    machine(Half(True, True, None))
    with computing_in("bf16"):
        assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == torch.bfloat16
    assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == torch.float32


def test_without_a_gain_all_stays_float32(machine):
    machine(Half(False, False, None))
    with computing_in("bf16"):
        assert not tower_in_half()
        assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not tower_in_half()


def test_scores_are_those_of_training(machine):
    """Also where torch's own bfloat16 does not work: scoring takes the kernels that training takes."""
    machine(Half(True, False, None))
    torch.manual_seed(0)
    tower, x = DenseTower([20, 64, 2]), torch.randn(300, 20)
    with computing_in("bf16"):
        trained = tower(x).detach()
        with torch.no_grad():
            assert torch.equal(tower(x), trained)
    with torch.no_grad():
        plain = tower(x)
    assert not torch.equal(plain, trained)
    torch.testing.assert_close(plain, trained, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_scores_do_not_depend_on_torchs_threads(threads):
    tower, x = DenseTower([20, 64, 2]), torch.randn(700, 20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.no_grad():
            scores = tower(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(scores, tower(x).detach())


def test_it_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(precision.levels, "chosen", precision.levels.Choice("avx2", ("avx2",), ""))
    precision.this_machine.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                with computing_in("bf16"):
                    pass
    finally:
        precision.this_machine.cache_clear()
    assert [record.message for record in caplog.records] == [
        "bf16: this processor (level avx2) gains nothing by it; computing in float32"
    ]


def test_an_unknown_one_is_refused():
    with pytest.raises(ConfigError, match="precision='fp8' is not a precision; choose float32 or bf16"):
        computing_in("fp8")
