"""Words and the skip-gram pass: native kernels against their twins, at every level of the processor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import EVERY_LEVEL, face

from sparsefleet.kernels import words
from sparsefleet.kernels.reference import words as reference

each_level = pytest.mark.parametrize("level", EVERY_LEVEL)

SPACES = st.sampled_from([b" ", b"\n", b"\t", b"\r\n", b"  ", b"\n\n", b"\v\f"])
WORD = st.sampled_from([b"a", b"bee", b"sea", b"dee", "größe".encode(), b"x" * 1000, b"y" * 1001, b"eleven-long"])
TEXT = st.lists(st.tuples(WORD, SPACES), max_size=60).map(lambda parts: b"".join(w + s for w, s in parts))


def blocks_of(text: bytes, size: int):
    array = np.frombuffer(text, np.uint8)
    parts = [array[at : at + size] for at in range(0, len(text), size)] + [np.empty(0, np.uint8)]
    return [(part, index == len(parts) - 1) for index, part in enumerate(parts)]


def counted(counter) -> dict[bytes, int]:
    text, counts = counter.counted(1)
    return dict(zip(text.tobytes().split(b"\n")[:-1], counts.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(TEXT, st.integers(1, 700), st.integers(2, 8))
def test_counting(text, size, most):
    made = [module.WordCounter(most) for module in (words, reference)]
    for counter in made:
        for block, last in blocks_of(text, size):
            counter.feed(block, last)
    assert counted(made[0]) == counted(made[1])
    for name in ("words", "too_long", "forgotten"):
        assert getattr(made[0], name) == getattr(made[1], name)
    assert made[0].words == sum(len(word) <= 1000 for word in text.split())


def test_counters_are_merged_and_memory_is_bounded():
    one, two = words.WordCounter(1000), words.WordCounter(1000)
    text = b"".join(b"w%d often often " % i for i in range(5000))
    for counter in (one, two):
        counter.feed(np.frombuffer(text, np.uint8), True)
        assert len(counter) <= 1000
    one.merge(two)
    assert one.words == 30_000
    assert counted(one)[b"often"] == 20_000, "a frequent word's count is exact, whatever was forgotten"


def table(module, subsampled: bool):
    vocabulary = [b"a", b"bee", b"sea", b"dee", "größe".encode()]
    keep = np.array([2**31, 2**32 - 1, 2**30, 2**32 - 1, 0] if subsampled else [2**32 - 1] * 5, np.uint32)
    share = np.array([2**31, 2**32 - 1, 5, 2**30, 2**29], np.uint32)
    text = np.frombuffer(b"".join(word + b"\n" for word in vocabulary), np.uint8)
    return module.WordTable(text, keep, share, np.array([1, 1, 0, 4, 2], np.uint32))


@settings(max_examples=60, deadline=None)
@given(TEXT, st.integers(1, 700), st.integers(0, 2**64 - 1), st.booleans(), st.integers(1, 5), st.integers(0, 7))
def test_samples_of_text(text, size, seed, subsampled, shared, negatives):
    found = []
    for module in (words, reference):
        parser = module.WordParser(table(module, subsampled), seed, 5, negatives, shared, 17)
        parts = [parser.parse(block, last) for block, last in blocks_of(text, size)]
        found.append([np.concatenate(column) for column in zip(*parts, strict=True)] + [parser.unknown])
    for native, twin in zip(*found, strict=True):
        np.testing.assert_array_equal(native, twin)


def test_samples_without_room_for_their_negatives_are_refused():
    """The parser itself knows how many there are: it writes as many."""
    parser, block = words.WordParser(table(words, False), 1, 5, 7, 1, 0)._native, np.frombuffer(b"a bee sea", np.uint8)
    keys, radius = np.empty(6 * 8 - 1, np.uint64), np.empty(6, np.float32)
    with pytest.raises(ValueError, match="room for"):
        parser.parse(block, True, keys, radius, np.empty(6, np.uint64), np.empty(6, np.int64), np.empty(6, np.int64))


def test_a_vocabulary_that_makes_no_sense_is_refused():
    numbers = np.zeros(2, np.uint32)
    for text in (b"a\n", b"a\na\n", b"a\nb"):
        with pytest.raises(ValueError, match=r"vocabulary|twice"):
            words.WordTable(np.frombuffer(text, np.uint8), numbers, numbers, numbers)


def stretch(count, negatives, dim, seed, scale=0.5):
    draw = np.random.default_rng(seed)
    U, C = max(1, count // 3), max(2, count)
    return (
        (scale * draw.standard_normal((U, dim))).astype(np.float32),
        (scale * draw.standard_normal((C, dim))).astype(np.float32),
        draw.integers(0, U, count).astype(np.int32),
        draw.integers(0, C, count * (1 + negatives)).astype(np.int32),
        draw.integers(1, 6, count).astype(np.float32),
        np.sort(draw.integers(0, 1 + count // 8, count)).astype(np.uint64),
        draw.uniform(0, 0.1, count).astype(np.float32),
    )


@each_level
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 14), st.sampled_from([1, 3, 8, 16, 33, 100]), st.integers(0, 999))
def test_a_step_is_its_twins(level, count, negatives, dim, seed):
    given_ = stretch(count, negatives, dim, seed, 0.5 if dim < 50 else 0.2)
    mine, twin = face("words", level).skip_gram(*given_), reference.skip_gram(*given_)
    assert mine.loss == pytest.approx(twin.loss, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(mine.probabilities, twin.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mine.grad_words, twin.grad_words, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mine.grad_contexts, twin.grad_contexts, rtol=1e-5, atol=1e-5)


@each_level
def test_extreme_scores_stay_numbers(level):
    given_ = list(stretch(20, 5, 16, 1, scale=30.0))
    done = face("words", level).skip_gram(*given_)
    assert np.isfinite(done.loss)
    assert np.isfinite(done.grad_words).all()
    assert ((done.probabilities >= 0) & (done.probabilities <= 1)).all()


def test_a_word_alone_in_its_line_changes_nothing():
    given_ = list(stretch(4, 2, 8, 0))
    given_[5] = np.arange(4, dtype=np.uint64)
    done = words.skip_gram(*given_)
    assert done.loss == 0
    assert not done.grad_words.any()
    assert done.probabilities.tolist() == [0.5] * 4


@pytest.mark.parametrize("place", [2, 3])
def test_places_outside_of_the_rows_are_refused(place):
    given_ = list(stretch(4, 2, 8, 0))
    given_[place][1] = 99
    with pytest.raises(ValueError, match="not among the rows"):
        words.skip_gram(*given_)
