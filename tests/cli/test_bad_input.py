"""What bad input gets: exit status 1 and one message that says file, line, column, reason. Never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time

import pytest

SMALL = ("--hidden", "8", "--embedding-size", 2, "--batch-size", 50, "--threads", 1)


@pytest.fixture(scope="session")
def lines(clicks) -> list[str]:
    return (clicks / "test" / "part-0").read_text().splitlines(keepends=True)[:300]


@pytest.fixture
def refused(cli):
    """Runs a command that must fail, and gives its one message."""

    def run(*arguments) -> str:
        result = cli(*arguments)
        assert result.exit_code == 1, result.output
        assert "Traceback" not in result.stderr
        assert "error: " in result.stderr
        assert result.stdout == ""
        return result.stderr[result.stderr.index("error: ") :]

    return run


def train(data, *more):
    return ("train", "--data", data, *SMALL, *more)


def edited(lines, row, column, value):
    """The lines with one field of one row replaced (column 1 is the label)."""
    fields = lines[row - 1].rstrip("\n").split("\t")
    fields[column - 1] = value
    return [*lines[: row - 1], "\t".join(fields) + "\n", *lines[row:]]


CASES = {
    "too few fields": (lambda ls: [*ls[:6], "\t".join(ls[6].split("\t")[:30]) + "\n", *ls[7:]], ["line 7", "30", "40"]),
    "too many fields": (lambda ls: [*ls[:6], ls[6].rstrip("\n") + "\tx\n", *ls[7:]], ["line 7", "40"]),
    "a label other than 0 and 1": (lambda ls: edited(ls, 9, 1, "2"), ["line 9, column 1", "label", "'2'"]),
    "an empty label": (lambda ls: edited(ls, 9, 1, ""), ["line 9, column 1", "label"]),
    "not a number": (lambda ls: edited(ls, 5, 4, "12x"), ["line 5, column 4", "'12x'"]),
    "an infinite number": (lambda ls: edited(ls, 5, 4, "inf"), ["line 5, column 4", "'inf'"]),
    "an over-long line": (lambda ls: edited(ls, 3, 20, "a" * 2_000_000), ["line 3", "long"]),
    "a NUL": (lambda ls: edited(ls, 4, 15, "ab\0cd"), ["line 4, column 15", "NUL"]),
    "an empty line": (lambda ls: [*ls[:2], "\n", *ls[2:]], ["line 3"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_row_names_file_line_column_and_reason(refused, lines, tmp_path, case):
    spoil, wanted = CASES[case]
    (tmp_path / "part-0").write_text("".join(spoil(lines)))
    said = refused(*train(tmp_path))
    for text in [str(tmp_path / "part-0"), *wanted, "skip"]:
        assert text in said


def test_invalid_utf8(refused, lines, tmp_path):
    raw = "".join(edited(lines, 8, 16, "ÿ")).encode("latin-1")
    (tmp_path / "part-0").write_bytes(raw)
    said = refused(*train(tmp_path))
    for text in (f"{tmp_path / 'part-0'}, line 8, column 16", "UTF-8"):
        assert text in said


@pytest.mark.parametrize("reader", ["queue", "memory", "pyreader", "feeder"])
def test_every_reader_says_so(refused, lines, tmp_path, reader):
    (tmp_path / "part-0").write_text("".join(edited(lines, 120, 1, "7")))
    said = refused(*train(tmp_path, "--reader", reader))
    assert f"{tmp_path / 'part-0'}, line 120, column 1" in said


def test_two_threads_say_so_too(refused, lines, tmp_path):
    (tmp_path / "part-0").write_text("".join(edited(lines, 250, 1, "7")))
    said = refused(*train(tmp_path, "--threads", 2))
    assert "column 1: " in said


def test_skipping_counts_per_reason(cli, lines, tmp_path):
    spoiled = edited(edited(edited(lines, 5, 1, "2"), 6, 1, "3"), 9, 3, "x")
    (tmp_path / "part-0").write_text("".join(spoiled) + "too\tfew\n")
    result = cli(*train(tmp_path, "--on-bad-row", "skip", "--test-data", tmp_path, "--json", "--save", tmp_path / "M"))
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["rows"] == 297
    assert sorted(said["skipped"].values()) == [1, 1, 2]
    assert said["test_skipped"] == said["skipped"]
    assert "skipped 4 bad rows of the training data: 2 × " in result.stderr
    assert "skipped 4 bad rows of the test data: 2 × " in result.stderr
    for reason, count in said["skipped"].items():
        assert f"{count} × {reason}" in result.stderr
    result = cli("infer", tmp_path / "M", "--data", tmp_path / "part-0", "--on-bad-row", "skip", "--json")
    assert json.loads(result.stdout)["skipped"] == said["skipped"]
    assert "skipped 4 bad rows" in result.stderr


def test_nothing_but_bad_rows(refused, tmp_path):
    (tmp_path / "part-0").write_text("a\tb\n" * 10)
    said = refused(*train(tmp_path, "--format", "criteo", "--on-bad-row", "skip"))
    assert "no good samples" in said
    assert "10 × " in said


def test_a_truncated_gzip_file(refused, lines, tmp_path):
    whole = gzip.compress("".join(lines).encode())
    (tmp_path / "part-0.gz").write_bytes(whole[: len(whole) // 2])
    said = refused(*train(tmp_path, "--format", "criteo"))
    assert str(tmp_path / "part-0.gz") in said
    assert "truncated" in said or "ended before" in said


def test_a_gzip_file_that_is_none(refused, lines, tmp_path):
    (tmp_path / "part-0.gz").write_text("".join(lines))
    assert "not gzip" in refused(*train(tmp_path))


def test_an_empty_file(refused, lines, tmp_path):
    (tmp_path / "part-0").write_text("".join(lines))
    (tmp_path / "part-1").write_text("")
    said = refused(*train(tmp_path))
    assert f"{tmp_path / 'part-1'}: the file is empty" in said


def test_a_missing_file(refused, tmp_path):
    assert f"{tmp_path / 'none'}: no such file or folder" in refused(*train(tmp_path / "none"))
    assert not list(tmp_path.iterdir())


def test_a_failed_start_leaves_nothing_behind(refused, tmp_path):
    refused(*train(tmp_path / "none", "--save", tmp_path / "M", "--tensorboard", tmp_path / "T"))
    assert not list(tmp_path.iterdir())


def test_missing_test_data(refused, clicks, tmp_path):
    assert "no such file" in refused(*train(clicks / "test", "--test-data", tmp_path / "none"))


def test_a_pattern_that_matches_nothing(refused, tmp_path):
    assert "no file matches this pattern" in refused(*train(tmp_path / "part-*"))


def test_an_empty_folder(refused, tmp_path):
    assert f"{tmp_path}: the folder holds no data files" in refused(*train(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission(refused, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0)
    try:
        assert "no permission to read it" in refused(*train(folder))
    finally:
        folder.chmod(0o700)


def test_a_damaged_parquet_file(refused, tmp_path):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1" + b"\0" * 500)
    assert "part-0.parquet" in refused(*train(tmp_path))


def test_a_schema_that_is_none(refused, clicks, tmp_path):
    (tmp_path / "schema.json").write_text("{")
    assert "not JSON" in refused(*train(clicks / "test", "--schema", tmp_path / "schema.json"))
    shutil.copy(clicks / "test" / "part-0", tmp_path / "part-0")
    assert "not JSON" in refused(*train(tmp_path))  # the one beside the data


# -- pipe commands -----------------------------------------------------------------------------------------------------

PIPES = {
    "fails": ("cat; echo cannot go on >&2; exit 3", ["exit status 3", "its stderr ends with: cannot go on"]),
    "fails at once": ("exit 7", ["exit status 7", "its stderr is empty"]),
    "is not there": ("no-such-program-at-all", ["exit status 127", "not found"]),
    "is killed": ("kill -9 $$", ["killed by signal 9"]),
    "prints junk": ("echo junk here; echo why >&2", ["printed a bad sample", "line 1", "its stderr ends with: why"]),
    "prints half a line": ("head -c -20", ["in the middle of a line", "exit status 0"]),
    "forgets the last line feed": ("head -c -1", ["in the middle of a line"]),
    "prints nothing": ("cat > /dev/null", ["it printed nothing"]),
}


@pytest.fixture(scope="session")
def slots(clicks, tmp_path_factory):
    from sparsefleet.datasets.show import show

    folder = tmp_path_factory.mktemp("slots")
    (folder / "part-0").write_text("".join(f"{line}\n" for line in show(clicks / "test" / "part-0", rows=200)))
    return folder


@pytest.mark.parametrize("reader", ["queue", "memory", "feeder"])
@pytest.mark.parametrize("case", PIPES)
def test_a_pipe_command_that(refused, slots, case, reader):
    command, wanted = PIPES[case]
    said = refused(*train(slots, "--pipe-command", command, "--reader", reader))
    assert repr(command) in said
    assert str(slots / "part-0") in said
    for text in wanted:
        assert text in said


@pytest.mark.parametrize("kind", ["queue", "memory", "pyreader", "feeder"])
def test_a_pipe_command_that_hangs(slots, kind):
    from sparsefleet.core.errors import DataError
    from sparsefleet.core.schema import CRITEO
    from sparsefleet.data.formats.pipe import PipeFormat
    from sparsefleet.data.in_memory import InMemoryDataset
    from sparsefleet.data.open import _MAKERS
    from sparsefleet.models import CTRDNN, CTRDNNConfig
    from sparsefleet.train import Trainer

    format = PipeFormat(CRITEO, "head -5; sleep 60", timeout=0.3)
    reader = _MAKERS[kind]([str(slots / "part-0")], format, 50, "error", 1)

    def run():
        if isinstance(reader, InMemoryDataset):
            reader.load_into_memory()
        Trainer().fit(CTRDNN(config=CTRDNNConfig(2, (8,))), reader)

    begun = time.monotonic()
    with pytest.raises(DataError, match=r"'head -5; sleep 60' on .*part-0: no output for 0.3 seconds, so it was"):
        run()
    assert time.monotonic() - begun < 10


# -- models and checkpoints --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def saved(clicks, tmp_path_factory):
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    folder = tmp_path_factory.mktemp("saved") / "M"
    arguments = [*train(clicks / "test", "--save", folder)]
    assert CliRunner().invoke(app, [str(a) for a in arguments]).exit_code == 0
    return folder


SHAPES = {
    "--embedding-size 3": ["saved with shape", "the model's has"],
    "--hidden 9": ["saved with shape [8, 65]; the model's has [9, 65]"],
    "--hidden 8,8": ["tower.layers"],
    "--optimizer sgd": ["saved with optimizer adam; the model's is sgd"],
    "--sparse-feature-dim 0": ["another schema: sparse_feature_dim is 1000001 there, 0 here"],
}


@pytest.mark.parametrize("change", SHAPES)
def test_a_checkpoint_of_another_shape(refused, clicks, saved, change):
    said = refused(*train(clicks / "test", *change.split(), "--resume", saved, "--epochs", 2))
    for text in SHAPES[change]:
        assert text in said


def test_who_cannot_resume_gets_advice_for_the_command_line(cli, refused, clicks, tmp_path):
    assert cli(*train(clicks / "test", "--save", tmp_path / "M", "--save-every", 20)).exit_code == 0
    said = refused(*train(clicks / "test", "--resume", tmp_path / "M" / "step-00000020", "--reader", "memory"))
    assert "resume with the same reader, or begin the epoch anew (seek({}), or without --resume)" in said


def test_no_checkpoint(refused, clicks, tmp_path):
    for command in (train(clicks / "test", "--resume", tmp_path / "x"), ("infer", tmp_path / "x", "--data", clicks)):
        assert f"no checkpoint at {tmp_path / 'x'}" in refused(*command)


def checkpoint_copy(saved, tmp_path):
    (found,) = saved.glob("step-*")
    return shutil.copytree(found, tmp_path / found.name)


def infer_and_train(clicks, path):
    return [("infer", path, "--data", clicks / "test"), train(clicks / "test", "--resume", path, "--epochs", 2)]


def test_a_checkpoint_of_another_version(refused, clicks, saved, tmp_path):
    path = checkpoint_copy(saved, tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 77}))
    for command in infer_and_train(clicks, path):
        said = refused(*command)
        assert "77" in said
        assert "version" in said


@pytest.mark.parametrize("kind", ["parquet", "safetensors"])
def test_a_damaged_file(cli, refused, clicks, saved, tmp_path, kind):
    path = checkpoint_copy(saved, tmp_path)
    file = max(path.rglob(f"*.{kind}"), key=lambda file: file.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 4] ^= 0x10  # keys and values come first: inference does not even read the optimizer's state
    file.write_bytes(raw)
    for command in infer_and_train(clicks, path):
        said = refused(*command)
        assert str(file) in said
        assert "damaged" in said
    verified = cli("checkpoint", "verify", path)
    assert verified.exit_code == 1
    assert "1 of " in verified.stderr


@pytest.mark.parametrize("kind", ["parquet", "safetensors", "json"])
def test_a_missing_or_truncated_file(refused, clicks, saved, tmp_path, kind):
    path = checkpoint_copy(saved, tmp_path)
    file = next(iter(sorted(path.rglob(f"*.{kind}"))))
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])
    said = refused("infer", path, "--data", clicks / "test")
    assert file.name in said
    file.unlink()
    said = refused("infer", path, "--data", clicks / "test")
    assert "missing" in said or "no checkpoint" in said


def test_a_model_of_the_users_own(refused, clicks, saved, tmp_path):
    path = checkpoint_copy(saved, tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["model"] = {"name": "custom", "class": "shop.Model"}
    (path / "manifest.json").write_text(json.dumps(manifest))
    said = refused("infer", path, "--data", clicks / "test")
    assert "a model of your own (shop.Model), and no code: load it from a script" in said


# -- options -----------------------------------------------------------------------------------------------------------

OPTIONS = {
    "--optimizer lamb": "optimizer 'lamb' does not exist; choose sgd, adagrad",
    "--reader tape": "reader='tape' is not a reader; choose queue, memory, pyreader, feeder",
    "--format xml": "format='xml' is not a format; choose auto, csv",
    "--precision fp8": "precision='fp8' is not a precision; choose float32 or bf16",
    "--preset tensorflow": "--preset tensorflow: choose default, paddle, bars-criteo-x4",
    "--l2 -1": "--l2 -1: give a number, 0 or above",
    "--clip-norm nan": "--clip-norm nan: give a number above 0",
    "--exact --optimizer ftrl": "--exact does not go with --optimizer ftrl: ftrl has an l2 of its own",
    "--exact --mode geo --servers 1 --workers 1": "--exact does not work in --mode geo: there every trainer moves",
    "--save-every 5": "--save-every needs --save FOLDER",
    "--save M --save-every 0": "every_steps=0 must be 1 or above",
    "--save M --keep 0": "keep=0 must be 1 or above",
    "--on-bad-row ignore": "on_bad_row='ignore' is not a policy; choose error or skip",
    "--shuffle": "--shuffle needs --reader memory",
    "--hidden a,b": "--hidden a,b: give widths separated by commas",
    "--hidden 0": "each of width 1 or above",
    "--embedding-size 0": "embedding_size=0 must be 1 or above",
    "--batch-size 0": "batch_size=0",
    "--threads 0": "threads=0",
    "--epochs 0": "--epochs 0 must be 1 or above; to score a saved model, there is sparsefleet infer",
    "--learning-rate -1": "learning_rate",
    "--learning-rate nan": "learning_rate",
    "--lr-decay 0": "decay",
    "--lr-decay 0.5 --lr-decay-steps 0": "steps",
    "--warmup-steps -1": "LinearWarmup(steps=-1",
    "--init-range -1": "init-range",
    "--init-range nan": "init-range",
    "--sparse-feature-dim -1": "sparse_feature_dim=-1",
    "--seed -1": "seed",
    "--seed 99999999999999999999": "seed",
    "--pipe-command cat --format criteo": "pipe_command is given, but format='criteo'",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_that_make_no_sense(refused, clicks, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    assert OPTIONS[options] in refused(*train(clicks / "test", *options.split()))


ONLY_FOR_MANY = {
    "--k-steps": 4,
    "--max-merge": 2,
    "--send-queue-size": 8,
    "--staleness": 1,
    "--dense-refresh": 2,
    "--timeout": 5,
    "--connect-timeout": 300,
    "--lost-trainer": "drop",
}


@pytest.mark.parametrize("option", ONLY_FOR_MANY)
def test_options_that_one_process_would_not_heed(refused, clicks, option):
    said = refused(*train(clicks / "test", "--mode", "geo", option, ONLY_FOR_MANY[option]))
    assert f"{option} does nothing in one process: give --servers and --workers too" in said


def test_the_mode_alone_is_taken_by_one_process(cli, clicks):
    for mode in ("sync", "half_async", "async", "geo"):
        result = cli(*train(clicks / "test", "--mode", mode))
        assert result.exit_code == 0, result.output


BEFORE_A_JOB = {
    "--reader tape": "reader='tape' is not a reader",
    "--format xml": "format='xml' is not a format",
    "--on-bad-row ignore": "on_bad_row='ignore' is not a policy",
    "--reader memory --on-bad-row ignore": "on_bad_row='ignore' is not a policy",
    "--reader feeder --on-bad-row ignore": "on_bad_row='ignore' is not a policy",
    "--pipe-command cat --format criteo": "pipe_command is given, but format='criteo'",
    "--batch-size 0": "batch_size=0",
    "--epochs 0": "--epochs 0 must be 1 or above; to score a saved model, there is sparsefleet infer",
    "--save M --keep 0": "keep=0 must be 1 or above",
    "--test-data nowhere": "nowhere: no such file or folder",
    "--resume nowhere": "no checkpoint at",
}


@pytest.mark.parametrize("options", BEFORE_A_JOB)
def test_a_job_does_not_start_with(refused, clicks, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    said = refused(*train(clicks / "train", "--servers", 1, "--workers", 2, *options.split()))
    assert BEFORE_A_JOB[options] in said
    assert list(tmp_path.iterdir()) == [], "no process, no log"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_does_not_start_with_an_empty_file(refused, clicks, tmp_path, monkeypatch, workers):
    shutil.copytree(clicks / "train", tmp_path / "data")
    (tmp_path / "data" / "part-9").touch()
    monkeypatch.chdir(tmp_path)
    said = refused(*train("data", "--servers", 1, "--workers", workers))
    assert "data/part-9: the file is empty; remove it from the list" in said
    assert not (tmp_path / "log").exists()


def test_metrics_that_cannot_be_written(refused, clicks, tmp_path):
    (tmp_path / "file").write_text("")
    said = refused(*train(clicks / "test", "--log-dir", tmp_path / "file"))
    assert f"cannot write metrics to {tmp_path / 'file' / 'metrics.jsonl'}" in said


def test_a_loss_that_is_not_a_number(refused, clicks):
    said = refused(*train(clicks / "train", "--optimizer", "sgd", "--learning-rate", 1e6))
    assert "the loss became" in said
    assert "lower the learning rate" in said


# -- a full disk -------------------------------------------------------------------------------------------------------

FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from sparsefleet.cli import main
main()
"""


def test_a_full_disk_during_a_save(clicks, saved, children, tmp_path):
    (found,) = saved.glob("step-*")
    before = shutil.copytree(saved, tmp_path / "M") / found.name
    (tmp_path / "full.py").write_text(FULL)
    largest = max(file.stat().st_size for file in before.rglob("*") if file.is_file())
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = children.run(
        *(largest // 2, *train(clicks / "test", "--resume", tmp_path / "M", "--save", tmp_path / "M", "--epochs", 2)),
        module="full",
        env=env,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert str(tmp_path / "M") in done.stderr
    from sparsefleet.checkpoint import Checkpoint, latest

    assert latest(tmp_path / "M").name == found.name
    Checkpoint.open(str(before)).verify()


def test_a_folder_that_another_run_has_saved_to_is_told(cli, clicks, tmp_path):
    run = train(clicks / "test", "--save", tmp_path / "M")
    told = "has checkpoints of an earlier run, the newest step-"
    assert told not in " ".join(cli(*run).stderr.split())
    assert told in " ".join(cli(*run).stderr.split())
    assert told not in " ".join(cli(*run, "--resume", tmp_path / "M", "--epochs", 2).stderr.split())
