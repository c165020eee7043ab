"""Python's own hash: commands have a fixed seed, and whoever makes keys of it in another way is told."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsefleet as sf
from sparsefleet.core.errors import DataError
from sparsefleet.data.formats import trial
from sparsefleet.data.salted_hash import find_hash, salted

INPUTS = ["user", "label"]
GENERATOR = """
import sys
import sparsefleet.data.generator as dg

def key(text):
    return {key}

class Clicks(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def reader():
            user, click = line.split()
            yield [("user", [key(user)]), ("label", [int(click)])]
        return reader

if __name__ == "__main__":
    Clicks().run_from_stdin()
"""


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(trial, "_tried", set())


@pytest.fixture
def part(tmp_path: Path) -> Path:
    (tmp_path / "part-0").write_text("".join(f"u{n} {n % 2}\n" for n in range(300)))
    return tmp_path / "part-0"


def dataset(part: Path, key: str) -> sf.QueueDataset:
    script = part.parent / "generator.py"
    script.write_text(GENERATOR.format(key=key))
    made = sf.DatasetFactory().create_dataset("QueueDataset")
    made.set_use_var(INPUTS)
    made.set_pipe_command(f"{sys.executable} {script}")
    made.set_filelist([part])
    return made


def keys(reader: sf.QueueDataset) -> list[int]:
    with reader.epoch(1) as epoch:
        return [int(key) for batch in epoch.streams[0] for key in batch.keys]


def in_another_process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(sf.__file__).parents[1])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    env |= {"PYTHONPATH": source, **environment}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)


def test_a_command_has_a_fixed_seed(part: Path, unset: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = keys(dataset(part, "hash(text) % 1000003"))
    wanted = in_another_process("print([hash(f'u{n}') % 1000003 for n in range(300)])", PYTHONHASHSEED="0")
    assert str(found) == wanted.stdout.strip()
    assert "makes keys of Python's own hash (slot user:" in caplog.text
    assert "PYTHONHASHSEED=0" in caplog.text
    caplog.clear()
    assert keys(dataset(part, "hash(text) % 1000003")) == found
    assert not caplog.text  # told once


def test_a_seed_of_the_users_own_is_kept(part: Path, unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    reader = dataset(part, "hash(text) % 1000003")
    wanted = in_another_process("print([hash(f'u{n}') % 1000003 for n in range(300)])", PYTHONHASHSEED="7")
    assert str(keys(reader)) == wanted.stdout.strip()
    assert reader.inputs().hash_seed == "7"


@pytest.mark.parametrize("key", ["__import__('random').randrange(10**9)", "id(text) + __import__('os').getpid()"])
def test_keys_that_differ_in_every_process_are_noticed(
    part: Path, unset: None, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    with caplog.at_level(logging.WARNING):
        keys(dataset(part, key))
    assert "makes other keys in every process, of the same lines (slot user:" in caplog.text
    assert "generator.py" in caplog.text


def test_a_sound_generator_is_not_mentioned(part: Path, unset: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = keys(dataset(part, "dg.stable_hash(text) % 1000003"))
    assert found == [sf.stable_hash(f"u{n}") % 1000003 for n in range(300)]
    assert not caplog.text


def test_a_generator_by_hand_warns_where_hash_is_salted(part: Path) -> None:
    dataset(part, "hash(text) % 1000003")
    script = part.parent / "generator.py"
    run = functools.partial(subprocess.run, [sys.executable, script], capture_output=True, text=True, timeout=60)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    env["PYTHONPATH"] = str(Path(sf.__file__).parents[1])
    salted_run = run(input="u1 0\n", env=env)
    assert salted_run.returncode == 0
    assert "generator.py: warning: it calls Python's own hash" in salted_run.stderr
    assert f"{script}:6, in key" in salted_run.stderr
    assert run(input="u1 0\n", env={**env, "PYTHONHASHSEED": "0"}).stderr == ""


class Reading:
    """As the documents' reader: a method that a closure calls."""

    def line(self, text: str) -> dict[str, object]:
        return {"label": 1, "user": hash("14" + text) % 1000}

    def sound(self, text: str) -> dict[str, object]:
        return {"label": 1, "user": sf.stable_hash("14" + text) % 1000}

    def reader(self):
        def iterate():
            for text in ("a", "b"):
                yield self.line(text)

        return iterate

    def sound_reader(self):
        def iterate():
            for text in ("a", "b"):
                yield self.sound(text)

        return iterate


class Sound:
    def __hash__(self) -> int:
        return hash("x")  # of objects in sets: no keys

    def __call__(self):
        yield {"label": 1, "user": sf.stable_hash("x")}


def helper(text: str) -> int:
    return hash(text) % 1000


def by_helper():
    yield {"label": 0, "user": helper("a")}


@pytest.mark.skipif(not salted(), reason="this process has a fixed PYTHONHASHSEED")
@pytest.mark.parametrize(
    ("source", "where"),
    [
        (Reading().reader(), "in line"),
        (by_helper, "in helper"),
        (functools.partial(lambda text: iter([{"label": 1, "user": hash(text) % 1000}]), "a"), "in <lambda>"),
    ],
)
def test_a_python_source_that_calls_hash_is_refused(source: object, where: str) -> None:
    with pytest.raises(DataError, match=rf"PyReader calls Python's own hash \(.*test_salted_hash.py:\d+, {where}\)"):
        sf.PyReader(INPUTS, source).epoch()
    with pytest.raises(DataError, match=r"use sparsefleet\.stable_hash, or start Python with PYTHONHASHSEED=0"):
        sf.Feeder(INPUTS, source).epoch()


def test_another_process_that_makes_other_keys_cannot_go_on() -> None:
    def made_by(process: int):
        return lambda: iter([{"label": n % 2, "user": n + process} for n in range(10)])

    reader = sf.PyReader(INPUTS, made_by(1), batch_size=2)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    for process in (1, 2):
        again = sf.PyReader(INPUTS, made_by(process), batch_size=4)
        again.seek(position)
        with again.epoch() as epoch:
            if process == 1:
                assert [len(batch) for batch in epoch.streams[0]] == [4, 4]
            else:
                with pytest.raises(DataError, match="the first sample has other keys than when the position was taken"):
                    list(epoch.streams[0])


def test_sources_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (
        Reading().sound_reader(),
        Sound(),
        [{"label": 1, "user": 5}],
        lambda: iter([{"label": 1, "user": 3}]),
    ):
        assert find_hash(source) is None
        with sf.Feeder(INPUTS, source).epoch() as epoch:
            assert len(next(epoch.streams[0])) >= 1
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    with sf.Feeder(INPUTS, by_helper).epoch() as epoch:
        assert len(next(epoch.streams[0])) == 1


def test_numpy_and_torch_are_not_the_users() -> None:
    def source():
        yield {"label": np.ones(2), "user": np.arange(2)}

    assert find_hash(source) is None
