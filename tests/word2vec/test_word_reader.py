"""WordReader: the Reader contract's promises, on text: positions, resuming, units, rates that fall."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.word2vec import Word2VecConfig, WordReader, count_words

EPOCHS = 2


@pytest.fixture(params=["plain", "gzip", "one line"])
def files(request, tmp_path, text):
    if request.param == "plain":
        return [str(text)]
    file = tmp_path / "words"
    data = text.read_bytes()
    file.write_bytes(gzip.compress(data) if request.param == "gzip" else data.replace(b"\n", b" "))
    return [str(file)]


def reader(files, **settings):
    config = Word2VecConfig(subsample=0.01, seed=settings.pop("seed", 3))
    return WordReader(files, count_words(files), config, epochs=EPOCHS, **{"batch_size": 700, **settings})


def drained(made, threads=1, epoch=0):
    made.set_epoch(epoch)
    batches = []
    with made.epoch(threads) as streams:
        for stream in streams.streams:
            for batch in stream:
                made.consumed(batch)
                batches.append(batch)
    return batches


def parts(batches):
    return [np.concatenate([getattr(b, name) for b in batches]) for name in ("keys", "dense", "groups", "weights")]


def test_the_same_words_each_time_and_others_in_another_epoch(files):
    one, again, next_epoch = (parts(drained(reader(files), epoch=epoch)) for epoch in (0, 0, 1))
    for mine, theirs in zip(one, again, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(one[0]) != len(next_epoch[0]) or (one[0] != next_epoch[0]).any()


def test_it_goes_on_from_every_position_with_the_same_draws(files):
    whole = drained(reader(files))
    made = reader(files)
    with made.epoch(1) as streams:
        for _ in range(5):
            made.consumed(next(streams.streams[0]))
        position = json.loads(json.dumps(made.position()))
    rest = reader(files)
    rest.seek(position)
    left = drained(rest)
    assert len(left) == len(whole) - 5
    for mine, theirs in zip(parts(left)[:2], parts(whole[5:])[:2], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(parts(left)[3], parts(whole[5:])[3], rtol=1e-6)
    assert rest.position() == {}, "after the last batch there is nothing left"


def test_threads_share_the_words_among_them(files):
    everything = Word2VecConfig(subsample=0)
    known = count_words(files)
    made = WordReader(files, known, everything, epochs=1, batch_size=500)
    words = np.concatenate([batch.keys.reshape(len(batch), -1)[:, 0] for batch in drained(made, threads=3)])
    np.testing.assert_array_equal(np.bincount(words.astype(np.int64)), known.counts)


def test_the_rate_falls_over_all_epochs(files):
    rates = np.concatenate([parts(drained(reader(files), epoch=epoch))[3] for epoch in range(EPOCHS)])
    assert (np.diff(rates) <= 0).all()
    assert rates[-1] == pytest.approx(1e-4, rel=0.01)
    assert rates[0] > 0.02


def test_windows_end_with_lines(text):
    batches = drained(reader([str(text)]))
    groups = np.concatenate([batch.groups for batch in batches])
    assert len(np.unique(groups)) == 2000
    assert set(np.concatenate([batch.dense[:, 0] for batch in batches])) == {1, 2, 3, 4, 5}


def test_other_files_and_positions_are_refused(files, tmp_path, text):
    made = reader(files)
    with made.epoch(1) as streams:
        made.consumed(next(streams.streams[0]))
        position = made.position()
    other = tmp_path / "other"
    other.write_bytes(text.read_bytes())
    with pytest.raises(ConfigError, match="another list of files"):
        WordReader([str(other)], made.vocabulary).seek(position)
    with pytest.raises(ConfigError, match="not a reader's position"):
        made.seek({"x": 1})
    with pytest.raises(ConfigError, match="epochs=0"):
        WordReader(files, made.vocabulary, epochs=0)
    with pytest.raises(ConfigError, match="no text"):
        WordReader([], made.vocabulary)
