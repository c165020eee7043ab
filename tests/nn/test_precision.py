"""bf16 never fails and is never chosen where it has no gain."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels import levels
from sparsefleet.nn import DenseTower, precision
from sparsefleet.nn.precision import Half, computing_in, decide, tower_in_half


def chosen(level: str) -> levels.Choice:
    """On a processor that has all there is."""
    every = frozenset(feature for one in levels.LEVELS for feature in one.features)
    return levels.choose(levels.Processor("", every, ~0), [one.name for one in levels.LEVELS], level)


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
    half = decide(chosen(level), never, never)
    assert (half.tower, half.autocast) == (False, False)
    assert half.note == f"bf16: this processor (level {level}) gains nothing by it; computing in float32"


def test_a_processor_that_is_slower_with_it_computes_in_float32():
    half = decide(chosen("avx512bf16"), lambda: 0.57, never)
    assert (half.tower, half.autocast) == (False, False)
    assert half.note == "bf16: 0.57 times as fast as float32 on this processor; computing in float32"


def test_where_torch_cannot_the_tower_still_does():
    half = decide(chosen("amx"), lambda: 8.0, lambda: "could not create a primitive")
    assert (half.tower, half.autocast) == (True, False)
    assert "could not create a primitive" in half.note


def test_where_all_works_nothing_is_said():
    assert decide(chosen("amx"), lambda: 8.0, lambda: None) == Half(True, True, None)


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


def test_a_model_may_keep_its_tower_out_of_it(machine):
    machine(Half(True, True, None))
    with computing_in("bf16"):
        assert tower_in_half()
        with torch.autocast("cpu", enabled=False):
            assert not tower_in_half()


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


def test_scores_are_float32_whatever_torchs_default_is():
    tower, x = DenseTower([20, 64, 2]), torch.randn(30, 20)
    with torch.no_grad():
        scores = tower(x)
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(tower(x), scores)
        finally:
            torch.set_default_dtype(torch.float32)


def test_a_long_input_is_scored_in_little_room():
    tower, x = DenseTower([20, 64, 2]), torch.randn(5000, 20)
    with torch.no_grad():
        scores = tower(x)
        assert torch.equal(torch.cat([tower(x[:1700]), tower(x[1700:])]), scores)
    assert max(workspace.size for workspace in tower._free) <= 1024


def test_threads_may_score_with_one_tower():
    """Batches of different sizes: a workspace that one has looked at may be another's by the time it is taken."""
    tower = DenseTower([8, 16, 2])
    inputs = [torch.randn(rows, 8) for rows in (5, 6, 7)]

    def score(index: int) -> torch.Tensor:
        with torch.no_grad():
            return tower(inputs[index % 3])

    expected = [score(index) for index in range(3)]
    with ThreadPoolExecutor(4) as pool:
        for index, scores in enumerate(pool.map(score, range(3000))):
            assert torch.equal(scores, expected[index % 3])


def test_inputs_of_other_shapes():
    tower, x = DenseTower([8, 16, 2]), torch.randn(3, 4, 8)
    assert torch.equal(tower(x), tower(x.reshape(12, 8)).reshape(3, 4, 2))
    with pytest.raises(ConfigError, match=r"this DenseTower takes rows of 8 values; the input is \[3, 7\]"):
        tower(torch.randn(3, 7))
