"""Vocabularies: counted by several threads, whatever the files look like; what is no text is refused."""

from __future__ import annotations

import gzip
import logging
from collections import Counter

import numpy as np
import pytest
from remote_place import URI, place

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.word2vec import Vocabulary, count_words, share_text, text_files
from sparsefleet.word2vec.corpus import blocks, plan
from sparsefleet.word2vec.vocabulary import alias_table


def a_text(words: int, separator: str) -> str:
    draw = np.random.default_rng(0)
    return separator.join(f"w{number}" for number in draw.zipf(1.5, words) if number < 10_000)


def expected(text: str, least: int) -> list[tuple[str, int]]:
    counts = Counter(text.split())
    return sorted(((w, c) for w, c in counts.items() if c >= least), key=lambda each: (-each[1], each[0].encode()))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("separator", [" ", "\n", " \t\n"])
def test_counts(tmp_path, threads, separator):
    text = a_text(150_000, separator)
    (tmp_path / "one.txt").write_text(text)
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(text.encode()))
    known = count_words(text_files(tmp_path), min_count=3, threads=threads)
    assert list(zip(known.words, known.counts.tolist(), strict=True)) == expected(text + " " + text, 3)
    assert known.text_words == 2 * len(text.split())


def test_text_behind_a_uri_counts_alike(tmp_path):
    text = a_text(20_000, " ")
    (tmp_path / "one.txt").write_text(text)
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(text.encode()))
    here = count_words(text_files(tmp_path), min_count=3, threads=2)
    (tmp_path / "three.txt").write_text(" ")
    with place(tmp_path):
        there = count_words(text_files([f"{URI}/one.txt", f"{URI}/two.txt.gz"]), min_count=3, threads=2)
        with pytest.raises(DataError, match=f"{URI}/three.txt: there are no words in it"):
            text_files(f"{URI}/three.txt")
    assert there.words == here.words
    assert there.counts.tolist() == here.counts.tolist()


def test_every_word_is_in_exactly_one_unit(tmp_path):
    file = tmp_path / "text"
    text = "one  two\nthree four-five   six seven " * 5 + "x" * 30 + " end"
    file.write_text(text)
    for workers in (2, 3, 7, 40):
        found = []
        for worker in range(workers):
            for unit in plan(share_text([str(file)], worker, workers), 1):
                found += b"".join(block.tobytes() for block, _ in blocks(unit)).split()
        assert found == text.encode().split(), workers


def test_gzip_files_are_shared_out_whole(tmp_path):
    files = []
    for number in range(3):
        files.append(str(tmp_path / f"{number}.gz"))
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(b"some words " * (number + 1)))
    shares = [share_text(files, worker, 2) for worker in range(2)]
    assert sorted(shares[0] + shares[1]) == files
    with pytest.raises(ConfigError, match="3 are gzip and cannot be cut, are not enough text for 4 trainers"):
        share_text(files, 0, 4)


def test_a_file_keeps_it(tmp_path):
    known = Vocabulary(("the", "größe", "a\u00a0b"), np.array([5, 3, 2]), 12)
    known.save(tmp_path / "v")
    again = Vocabulary.load(tmp_path / "v")
    assert (again.words, again.counts.tolist(), again.text_words) == (known.words, [5, 3, 2], 12)
    assert again.digest == known.digest
    for bad, why in (("the five\n", "not a word, a space and a count"), ("", "not a word"), ("a 1\na 2\n", "twice")):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(DataError, match=why):
            Vocabulary.load(tmp_path / "bad")
    with pytest.raises(DataError, match="cannot read the vocabulary"):
        Vocabulary.load(tmp_path / "none")


def test_negatives_are_drawn_by_frequency():
    weights = np.array([8.0, 4.0, 2.0, 1.0, 0.5])
    share, other = alias_table(weights)
    chances = np.zeros(5)
    for v in range(5):
        kept = (int(share[v]) + 1) / 2**32
        chances[v] += kept / 5
        chances[other[v]] += (1 - kept) / 5
    np.testing.assert_allclose(chances, weights / weights.sum(), rtol=1e-6)


def test_frequent_words_are_left_out_as_word2vec_does():
    known = Vocabulary(("the", "rare"), np.array([99_000, 1000]), 100_000)
    from sparsefleet.kernels.reference import words as twin

    made = []
    kept = twin.WordTable
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sparsefleet.word2vec.vocabulary.WordTable", lambda *args: made.append(kept(*args)))
        known.table(1e-3)
    share = 0.99
    assert made[0].keep[0] / 2**32 == pytest.approx((np.sqrt(share / 1e-3) + 1) * 1e-3 / share, rel=1e-6)


def test_what_is_no_text_is_refused(tmp_path, caplog):
    empty, blank, binary, utf16 = (tmp_path / name for name in ("empty", "blank", "binary", "utf16"))
    empty.write_bytes(b"")
    blank.write_bytes(b" \n\n ")
    binary.write_bytes(bytes(range(256)) * 20)
    utf16.write_bytes("many words are here ".encode("utf-16") * 10)
    for file, why in ((empty, "empty"), (blank, "no words"), (binary, "binary data"), (utf16, "binary data")):
        with pytest.raises(DataError, match=why):
            text_files(file)
    (tmp_path / "few").write_text("all words here are different")
    with pytest.raises(DataError, match=r"none of the 5 different words in .*few occurs 2 times; lower the minimum"):
        count_words([str(tmp_path / "few")], min_count=2)
    with pytest.raises(DataError, match="no such file"):
        text_files(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="listed twice"):
        text_files([tmp_path / "few", tmp_path / "few"])
    (tmp_path / "odd").write_bytes(b"fine fine \xff\xfe \xff\xfe " + b"z" * 2000)
    with caplog.at_level(logging.WARNING):
        assert count_words([str(tmp_path / "odd")], min_count=2).words == ("fine",)
    assert "1 words of the vocabulary are not UTF-8" in caplog.text
    assert "1 runs of more than 1000 bytes" in caplog.text
