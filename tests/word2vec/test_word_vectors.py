"""Training word vectors in one process: they come to mean something, are saved, resumed, looked at, exported."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from topical_text import TOPICS

from sparsefleet.applications import Word2Vec
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import CheckpointError, ConfigError, DataError
from sparsefleet.models import build
from sparsefleet.train import FetchHandler, SavePolicy, Trainer
from sparsefleet.word2vec import SkipGram, WordReader, WordVectors, count_words, read_questions, saved_vocabulary
from sparsefleet.word2vec.questions import Section
from sparsefleet.word2vec.resume import check_resumed

SETTINGS = {"dim": 12, "window": 4, "subsample": 0.0, "learning_rate": 0.05}
EPOCHS = 3


def fitted(text, folder, *, threads=1, stop_at=None, resume=None, save_every=None):
    words = Word2Vec(**SETTINGS)
    loader = words.load_text(text, epochs=EPOCHS, batch_size=500)
    trainer = Trainer(words.optimizer(), threads=threads)
    policy = SavePolicy(str(folder), every_steps=save_every, keep=50)
    fetch = [stop_at] if stop_at else []
    return trainer.fit(words.model, loader, EPOCHS, save=policy, resume=resume, fetch=fetch)


@pytest.fixture(scope="module")
def saved(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "words"
    fitted(text, folder)
    return folder


def of_one_topic(vectors):
    """How many of each word's three nearest are of its topic, on average."""
    topic = {word: name for name, words in TOPICS.items() for word in words}
    near = [[topic[other] == topic[word] for other, _ in vectors.neighbours(word, 3)] for word in topic]
    return float(np.mean(near))


@pytest.mark.parametrize("threads", [1, 2])
def test_words_that_occur_together_come_to_lie_together(text, tmp_path, threads):
    result = fitted(text, tmp_path, threads=threads)
    assert result.rows == EPOCHS * 24_000
    vectors = WordVectors.load(tmp_path)
    assert len(vectors) == 24
    assert of_one_topic(vectors) > 0.95


def test_one_thread_and_a_seed_give_the_same_bits_also_when_resumed(text, tmp_path, saved):
    class Stop(FetchHandler):
        def handler(self, fetched):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(text, tmp_path, stop_at=Stop(["step"], period_batches=70), save_every=30)
    fitted(text, tmp_path, resume=str(tmp_path))
    mine, theirs = WordVectors.load(tmp_path), WordVectors.load(saved)
    assert mine.words == theirs.words
    np.testing.assert_array_equal(mine.vectors, theirs.vectors)


def test_the_vocabulary_lies_in_the_checkpoint(text, saved):
    assert saved_vocabulary(saved).digest == count_words([str(text)]).digest
    manifest = Checkpoint.open(latest(saved)).manifest
    again = build(manifest.model, SkipGram)
    trainer = Trainer(Word2Vec.optimizer())
    trainer.load(again, str(saved))
    assert again.vocabulary().words == saved_vocabulary(saved).words


def test_what_does_not_fit_is_refused(text, saved, tmp_path):
    check_resumed(saved, Word2Vec(**SETTINGS).config)
    with pytest.raises(ConfigError, match="dim was 12 then, is 13 now"):
        check_resumed(saved, Word2Vec(**{**SETTINGS, "dim": 13}).config)
    words = Word2Vec(**SETTINGS)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("ship", "boat"))
    loader = words.load_text(other, epochs=EPOCHS)
    with pytest.raises(CheckpointError, match="another schema: hash_seed"):
        Trainer(words.optimizer()).fit(words.model, loader, EPOCHS, resume=str(saved))
    with pytest.raises(ConfigError, match="call load_text first"):
        _ = Word2Vec().model
    with pytest.raises(ConfigError, match="window=65"):
        Word2Vec(window=65)
    with pytest.raises(ConfigError, match="scores no samples"):
        words.model(None)


def test_neighbours_and_unknown_words(saved):
    vectors = WordVectors.load(saved)
    near = vectors.neighbours("bread", 5)
    assert len(near) == 5
    assert near[0][1] >= near[-1][1]
    direction = vectors["bread"] / np.linalg.norm(vectors["bread"])
    other = vectors[near[0][0]] / np.linalg.norm(vectors[near[0][0]])
    assert near[0][1] == pytest.approx(float(direction @ other), abs=1e-6)
    with pytest.raises(ConfigError, match="'breat' is not in the vocabulary of 24 words; near it: bread"):
        vectors.neighbours("breat")


def test_analogies_are_answered_counted_and_skipped(tmp_path):
    words = ["king", "queen", "man", "woman", "Apple", "apple"]
    vectors = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1], [-1, 0, 0], [-1, 0, 0.1]], np.float32)
    asked = Section(
        "royal", (("man", "king", "woman", "queen"), ("MAN", "KING", "WOMAN", "apple"), ("a", "b", "c", "d"))
    )
    (answered,) = WordVectors(words, vectors).analogies([asked])
    assert (answered.right, answered.asked, answered.skipped) == (1, 2, 1)
    file = tmp_path / "questions"
    file.write_text(": royal\nman king woman queen\n\n: empty\n: more\na b c d\n")
    assert [(s.name, len(s.questions)) for s in read_questions(str(file))] == [("royal", 1), ("more", 1)]
    for bad, why in (("a b c\n", "line 1: a question is four words"), (": x\n", "no questions")):
        file.write_text(bad)
        with pytest.raises(DataError, match=why):
            read_questions(str(file))
    file.write_bytes(b"\xff\xfe a b c d")
    with pytest.raises(DataError, match="UTF-8"):
        read_questions(str(file))


@pytest.mark.parametrize("binary", [False, True])
def test_export_is_what_other_programs_read(saved, tmp_path, binary):
    vectors, file = WordVectors.load(saved), tmp_path / "vectors"
    vectors.export(file, binary=binary)
    header, _, rest = file.read_bytes().partition(b"\n")
    assert header == b"24 12"
    found = {}
    if binary:
        while rest:
            word, _, rest = rest.partition(b" ")
            found[word.decode()] = struct.unpack("<12f", rest[:48])
            assert rest[48:49] == b"\n"
            rest = rest[49:]
    else:
        for line in rest.decode().removesuffix("\n").split("\n"):
            word, *numbers = line.split(" ")
            found[word] = [float(number) for number in numbers]
    assert list(found) == list(vectors.words)
    np.testing.assert_array_equal(np.array(list(found.values()), np.float32), vectors.vectors)
    with pytest.raises(DataError, match="cannot write"):
        vectors.export(tmp_path / "no" / "folder")


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_opens_the_export(saved, tmp_path, binary):
    models = pytest.importorskip("gensim.models", reason="no gensim: pip install gensim")
    vectors, file = WordVectors.load(saved), str(tmp_path / "vectors")
    vectors.export(file, binary=binary)
    theirs = models.KeyedVectors.load_word2vec_format(file, binary=binary)
    assert theirs.index_to_key == list(vectors.words)
    np.testing.assert_array_equal(theirs.vectors, vectors.vectors)
    ours = [word for word, _ in vectors.neighbours("ship", 5)]
    assert [word for word, _ in theirs.most_similar("ship", topn=5)] == ours


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    from sparsefleet.optim import SGD
    from sparsefleet.store import LocalStore
    from sparsefleet.store.base import RunFacts
    from sparsefleet.table.spec import TableSpec

    store = LocalStore()
    store.create_table(TableSpec("words", 4, SGD(0.1)))
    store.save(str(tmp_path / "other"), RunFacts())
    with pytest.raises(CheckpointError, match="holds no word vectors"):
        WordVectors.load(tmp_path / "other")
    with pytest.raises(ConfigError, match="no checkpoint of word vectors"):
        check_resumed(tmp_path / "other", Word2Vec().config)


def test_readers_of_other_data_are_refused(text):
    words = Word2Vec(**SETTINGS)
    loader = words.load_text(text, epochs=1)
    assert isinstance(loader, WordReader)
    with loader.epoch() as epoch:
        batch = next(epoch.streams[0])
    with pytest.raises(ConfigError, match="batches of a WordReader"):
        words.model.own_pass(None).forward(type(batch).from_slots({"a": ([1], [0, 1])}))


def test_scoring_with_word_vectors_says_what_they_are_for(saved):
    with pytest.raises(CheckpointError, match="holds word vectors, which score no samples: look at them with"):
        build(Checkpoint.open(latest(saved)).manifest.model)
