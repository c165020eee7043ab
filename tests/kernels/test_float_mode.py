"""Denormals: zero in arithmetic on rows, numbers in what is read; the same in every thread and at every level.

A thread's own setting must neither matter to a kernel nor be changed by it.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import ADAM, BOTH, FTRL, HYPER, NOTED, PLAIN, UNIFORM, all_rows, hyper, make, pulled, u64, width

from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.kernels import _native, layers, levels, rows, table, text, tower
from sparsefleet.kernels.float_mode import denormals_are_zero, flushed
from sparsefleet.kernels.reference import rows as rows_twin
from sparsefleet.kernels.reference import table as table_twin
from sparsefleet.kernels.reference import tower as tower_twin
from sparsefleet.kernels.text_types import Block, Columns, SlotEntry, SlotKind
from sparsefleet.serving.kernels import redis_rows, request

SMALLEST = float(np.finfo(np.float32).smallest_normal)
# Denormals, what becomes one when it is squared, scaled or subtracted, and ordinary numbers to meet them.
MAGNITUDES = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-40, SMALLEST, 1.5 * SMALLEST, 1e-36, 1e-30, 1e-23, 1e-19, 1e-10, 0.5, 1.0, 30.0]),
    st.floats(0, 2.0**-116, width=32),  # 1e-35
)
NUMBERS = st.builds(np.copysign, MAGNITUDES, st.sampled_from([1.0, -1.0]))
RATES = st.sampled_from([0.05, 1.0, 1e-20, 1e-38, 1e-40])
SUBNORMALS = [1e-45, -1e-40, 1.1e-38, 1e-39]


def f32(values) -> np.ndarray:
    return np.array(values, np.float32)


def bits(*arrays) -> list[bytes]:
    """Equal for arrays of equal bits; a not-a-number is like any other."""
    return [np.where(np.isnan(array), np.float32(np.nan), array).tobytes() for array in arrays]


def has_denormals(array) -> bool:
    return bool(((array != 0) & (np.abs(array) < SMALLEST)).any())


def in_both_modes(work):
    """What `work` gives in a thread that keeps denormals and in one that does not; it leaves both as they were."""
    assert not denormals_are_zero()
    kept = work()
    assert not denormals_are_zero()
    with flushed():
        gone = work()
        assert denormals_are_zero()
    assert not denormals_are_zero()
    return kept, gone


@st.composite
def updates(draw):
    kind, n = draw(st.sampled_from(PLAIN)), draw(st.integers(1, 40))
    values, grads = (f32(draw(st.lists(NUMBERS, min_size=n, max_size=n))) for _ in range(2))
    size = width(kind, n)
    state = np.abs(f32(draw(st.lists(NUMBERS, min_size=size, max_size=size))))
    return kind, draw(RATES), draw(st.integers(1, 10000)), values, state, grads


def updated(kernels, update, locks=None):
    kind, rate, step, values, state, grads = update
    w, s = values.copy(), state.copy()
    with np.errstate(all="ignore"):
        kernels.apply_rule(kind, rate, hyper(kind), step, w, s, grads, locks or kernels.BlockLocks())
    return w, s


# ---- the mode itself ----


def test_a_scope_ends_with_an_error_too_and_may_stand_in_another():
    with pytest.raises(ZeroDivisionError), flushed():
        1 / 0  # noqa: B018
    assert not denormals_are_zero()
    with flushed():
        with flushed():
            pass
        assert denormals_are_zero()
        assert (f32([1e-40]) * np.float32(1) == 0).all()
    assert (f32([1e-40]) * np.float32(1) != 0).all()


# ---- arithmetic on rows ----


@settings(max_examples=200, deadline=None)
@given(updates())
def test_rules_give_the_bits_of_the_twin_in_either_mode(update):
    kept, gone = in_both_modes(lambda: updated(table, update))
    twin, twin_gone = in_both_modes(lambda: updated(table_twin, update))
    assert bits(*kept) == bits(*gone) == bits(*twin) == bits(*twin_gone)
    if update[0] != FTRL or update[1] >= SMALLEST:  # FTRL stands still at a rate of 0, which a denormal is
        assert not has_denormals(kept[0])
        assert not has_denormals(kept[1])


@settings(max_examples=60, deadline=None)
@given(updates())
def test_rules_give_the_same_bits_at_every_level(update):
    modules = [_native.kernels(name) for name in levels.chosen.available]
    assert len({tuple(bits(*updated(module, update))) for module in modules}) == 1


@BOTH
def test_adams_moments_fade_to_zero_without_denormals(kernels):
    w, s = f32([1.0, 1.0]), np.zeros(4, np.float32)
    locks, none = kernels.BlockLocks(), np.zeros(2, np.float32)
    beside = np.array([0.9, 0.5, 1e-8])
    kernels.apply_rule(ADAM, 0.001, beside, 1, w, s, f32([1e-20, 1e-15]), locks)
    assert s[2] == 0  # 5e-41
    for step in range(2, 600):
        kernels.apply_rule(ADAM, 0.001, beside, step, w, s, none, locks)
        assert not has_denormals(s)
    assert s[3] == 0
    # The mean ends where a tenth of it is nothing: so small that no value moves by it.
    assert (np.abs(s[:2]) < 10 * SMALLEST).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=24, max_size=24), st.sampled_from(sorted(HYPER)), RATES, st.integers(1, 5))
def test_rows_keep_the_bits_of_the_twin_in_either_mode(numbers, kind, rate, shares):
    values, grads, heard, state = f32(numbers).reshape(4, 2, 3)
    keys, others = u64([5, 9]), u64([9, 2**64 - 1])

    def history(kernels):
        kept = make(kernels, 3, kind)
        state_size = (2, width(kind, 3))
        kept.insert(keys, values, np.abs(np.resize(state, state_size)), *[np.ones(2, np.uint32)] * 2)
        seen = [pulled(kept, keys)]
        with np.errstate(all="ignore"):
            kept.push(others, grads, kind, rate, hyper(kind), 3)
            if kind in NOTED:
                seen.append(np.empty((2, 3), np.float32))
                kept.take(keys, float(shares), seen[-1], np.empty(len(keys), np.uint32))
                kept.rebase(others, heard, True, kind, rate, hyper(kind), 3)
        found = sorted(all_rows(kept).items())
        floats = [np.frombuffer(part, np.float32) for _, row in found for part in row[:2]]
        return [(key, row[2]) for key, row in found], bits(*seen, *floats)

    kept, gone = in_both_modes(lambda: history(table))
    assert kept == gone == history(table_twin)


def test_what_is_only_kept_is_not_changed():
    """A checkpoint that is loaded and saved again is the same file."""
    values = f32([SUBNORMALS])

    def held():
        kept = make(table, 4, ADAM)
        kept.insert(u64([1]), values, np.tile(values, 2), *[np.ones(1, np.uint32)] * 2)
        return bits(pulled(kept, u64([1])), kept.scan(0, 1).state)

    kept, gone = in_both_modes(held)
    assert kept == gone == bits(values, np.tile(values, 2))


@pytest.mark.parametrize("interval", [(-1e-38, 1e-38), (-1.0, 0.0), (1e-45, 1e-40)])
def test_first_values_are_the_same_wherever_a_row_is_made(interval):
    keys = np.arange(300, dtype=np.uint64)

    def made():
        pulling, pushing = (table.RowTable(5, 0, 11, UNIFORM, *interval) for _ in range(2))
        pushing.push(keys, np.zeros((300, 5), np.float32), 0, 0.0, np.zeros(1), 1)
        pushed = pulled(pushing, keys)
        return table.init_rows(11, keys, 5, UNIFORM, *interval), pulled(pulling, keys), pushed

    kept, gone = in_both_modes(made)
    assert bits(*kept) == bits(*gone)
    assert bits(kept[0]) == bits(kept[1]) == bits(table_twin.init_rows(11, keys, 5, UNIFORM, *interval))
    # A push updates the row that it has made.
    np.testing.assert_array_equal(kept[2], np.where(np.abs(kept[0]) < SMALLEST, 0, kept[0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=12, max_size=12), st.booleans())
def test_pooling_does_not_depend_on_the_thread(numbers, mean):
    embedded, grads = f32(numbers[:8]).reshape(4, 2), f32(numbers[8:]).reshape(2, 2)
    inverse, offsets = np.array([0, 1, 1, 2, 3], np.int32), np.array([0, 3, 5], np.int64)

    def pooled(kernels):
        out, back = np.empty((2, 2), np.float32), np.zeros((4, 2), np.float32)
        bags = (inverse, offsets, 1, np.zeros(1, np.int32), mean)
        kernels.pool_forward(embedded, *bags, out)
        kernels.pool_backward(grads, *bags, back)
        return out, back

    kept, gone = in_both_modes(lambda: pooled(rows))
    assert bits(*kept) == bits(*gone)
    for mine, theirs in zip(kept, pooled(rows_twin), strict=True):
        assert not has_denormals(mine)
        assert not has_denormals(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2 * SMALLEST)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(NUMBERS, st.floats(-120, 120, width=32)), min_size=2, max_size=20))
def test_the_loss_does_not_depend_on_the_thread(logits):
    given_logits, labels = f32(logits)[:, None], f32([index % 2 for index in range(len(logits))])
    (loss, *kept), (other, *gone) = in_both_modes(lambda: rows.click_loss(given_logits, labels))
    assert loss == other
    assert bits(*kept) == bits(*gone)
    assert not has_denormals(kept[0])
    assert not has_denormals(rows_twin.click_loss(given_logits, labels)[1])


def test_clicks_are_counted_alike():
    probabilities, labels = f32([*SUBNORMALS, 0.0, 0.3, 1e-40]), f32([1, 1, 0, 1, 0, 1e-40, 0])

    def counted(kernels):
        positive, negative = np.zeros(8, np.int64), np.zeros(8, np.int64)
        sums = kernels.count_clicks(probabilities, labels, positive, negative)
        return sums, positive.tolist(), negative.tolist()

    kept, gone = in_both_modes(lambda: counted(rows))
    assert kept == gone == counted(rows_twin)
    assert kept[0].bad == 2  # -1e-40 is below 0, and a label of 1e-40 is none


def test_blocks_are_summed_alike():
    parts = [f32([1e-40, 1.5 * SMALLEST, 1.0]), f32([1e-40, -SMALLEST, 1e-40]), f32([SMALLEST, 0, 0])]
    kept, gone = in_both_modes(lambda: rows.sum_blocks(parts))
    assert bits(kept) == bits(gone) == bits(f32([SMALLEST, 0, 1.0]))


@pytest.mark.parametrize("half", [False, True])
def test_the_tower_does_not_depend_on_the_thread(half):
    draw = np.random.default_rng(0)

    def small(*shape):
        return (draw.integers(-2, 3, size=shape) * 1e-20).astype(np.float32)

    x, weights, biases = small(9, 20), [small(17, 20), small(3, 17)], [small(17), small(3)]
    grad_out = small(9, 3)

    def passed(kind):
        space, out, grad_x = kind(9, [20, 17, 3]), np.empty((9, 3), np.float32), np.empty_like(x)
        gradients = [np.empty_like(one) for one in weights], [np.empty_like(one) for one in biases]
        space.forward(x, weights, biases, out, half)
        space.backward(x, weights, grad_out, *gradients, grad_x, half)
        return [out, *gradients[0], *gradients[1], grad_x]

    kept, gone = in_both_modes(lambda: passed(tower.TowerSpace))
    assert bits(*kept) == bits(*gone)
    for mine, theirs in zip(kept, passed(tower_twin.TowerSpace), strict=True):
        assert not has_denormals(mine)
        np.testing.assert_array_equal(mine, theirs)


def test_interactions_and_attention_do_not_depend_on_the_thread():
    draw = np.random.default_rng(0)

    def small(*shape):
        return (draw.integers(-2, 3, size=shape) * 1e-20).astype(np.float32)

    vectors, weights, biases = small(9, 5, 4), [small(3, 25), small(2, 15)], [small(3), small(2)]
    mixed_back, attended_back, weight = small(9, 5), small(9, 5, 6), small(24, 4)

    def passed():
        space, out, back = layers.Interactions(9, 5, 4, [3, 2]), np.empty((9, 5), np.float32), np.empty_like(vectors)
        gradients = [np.empty_like(one) for one in weights], [np.empty_like(one) for one in biases]
        space.forward(vectors, weights, biases, out)
        space.backward(vectors, weights, mixed_back, *gradients, back)
        attention, attended = layers.FieldAttention(5, 4, 2, 3, 1.0), np.empty_like(attended_back)
        grad_weight, grad_fields = np.empty_like(weight), np.empty_like(vectors)
        attention.forward(vectors, weight, attended)
        attention.backward(vectors, weight, attended, attended_back, grad_weight, grad_fields)
        return [out, *gradients[0], *gradients[1], back, attended, grad_weight, grad_fields]

    kept, gone = in_both_modes(passed)
    assert bits(*kept) == bits(*gone)
    assert not any(map(has_denormals, kept))


# ---- reading ----

TEXTS = ["1e-40", "-1e-45", "1e-310", "4.9e-324", "2.2250738585072014e-308", "1e-30", "0", "1e-400"]


@pytest.mark.parametrize("number", TEXTS)
def test_a_row_reads_the_same_in_every_thread(number):
    raw = np.frombuffer(f"1 {number} 1 7 1 1\n".encode(), np.uint8)
    layout = [SlotEntry(SlotKind.DENSE, 0, 1), SlotEntry(SlotKind.SPARSE, 0, 0), SlotEntry(SlotKind.LABEL, 0, 1)]

    def parsed():
        out = Columns.allocate(2, 1, 1, 9)
        parser = text.MultiSlotParser(layout, 1, 1, 0)
        done = parser.parse(Block(raw, begin=0, size=len(raw), stop=len(raw), final=True), out)
        return done, bits(out.dense[: done.filled])

    kept, gone = in_both_modes(parsed)
    assert kept == gone
    assert kept[0].filled == (number != "1e-400")  # the only one that no double holds
    if kept[0].filled:
        assert kept[1] == bits(f32([[float(number)]]))


@pytest.mark.parametrize("number", TEXTS)
def test_a_request_reads_the_same_in_every_thread(number):
    schema = Schema(dense=(DenseFeature("n", 0.0, 2.0),), slots=(Slot("s"),))
    body = f'{{"rows": [{{"n": {number}, "s": "a"}}]}}'.encode()

    def parsed():
        found = request.PlainRequests(schema, max_samples=9, max_text=99, max_values=9).parse(body)
        return None if found is None else bits(found[0])

    kept, gone = in_both_modes(parsed)
    assert kept == gone
    assert kept == (None if number == "1e-400" else bits(f32([[float(number) / 2]])))


def test_scores_are_written_alike():
    scores = f32(SUBNORMALS)
    kept, gone = in_both_modes(lambda: request.format_floats(scores))
    assert kept == gone
    assert bits(f32(json.loads(kept))) == bits(scores)


def test_stored_rows_are_decoded_alike():
    packed = np.zeros((1, 8), np.uint8)
    packed[0, :4] = f32([1e-40]).view(np.uint8)
    packed[0, 4:7] = np.array([1, -127, 0], np.int8).view(np.uint8)
    kept, gone = in_both_modes(lambda: redis_rows.decode_rows(packed, np.ones(1, np.uint8), 3, RowType.INT8))
    assert bits(kept) == bits(gone) == bits(f32([[1, -127, 0]]) * np.float32(1e-40))
