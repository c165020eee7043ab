"""Killed at any moment, or out of disk: the previous checkpoint is whole, and the next save cleans up."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_builders import assert_whole, chunked, make_rows, save

from sparsefleet.checkpoint import Checkpoint, begin, latest, write_sparse_shard
from sparsefleet.checkpoint.storage.local import LocalStorage, SyncedFile
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.table_rows import TableRows

HERE = Path(__file__).parent

# Kills itself at the moment given, in the middle of saving step 2 over step 1 or beside it.
CHILD = """
import os, signal, sys
target, moment = sys.argv[1:]
import checkpoint_builders as builders
import sparsefleet.checkpoint as checkpoint
from sparsefleet.checkpoint.storage.local import LocalStorage

def die(*ignored, **also):
    os.kill(os.getpid(), signal.SIGKILL)

def dying_rows(*ignored):
    rows = builders.make_rows(50, seed=2)
    yield rows.select(slice(0, 20))
    die()

calls = 0
def rename(self, source, target, real=LocalStorage.rename):
    global calls
    calls += 1
    if moment == f"before rename {calls}":
        die()
    real(self, source, target)
    if moment == f"after rename {calls}":
        die()

LocalStorage.rename = rename
if moment == "begun":
    builders.chunked = die
elif moment == "in a shard":
    builders.chunked = dying_rows
elif moment == "shards written":
    builders.write_buffers = die
elif moment == "before the manifest":
    builders.commit = die
elif moment == "after the manifest":
    LocalStorage.sync_tree = die
where = builders.save(target, step=2, seed=2)
print("saved")
if moment == "before the pointer":
    die()
"""
MOMENTS = [
    "begun",
    "in a shard",
    "shards written",
    "before the manifest",
    "after the manifest",
    "before rename 1",
    "after rename 1",
    "before rename 2",
    "after rename 2",
    "before the pointer",
]


def run_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=child_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def child_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_replacing_a_checkpoint(moment: str, tmp_path: Path) -> None:
    target = tmp_path / "c"
    save(target, step=1, seed=1)
    child = run_child(CHILD, str(target), moment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    committed = moment in ("after rename 2", "before the pointer")
    assert latest(target).path == str(target)
    assert_whole(target, step=2 if committed else 1, seed=2 if committed else 1)
    save(target, step=3, seed=3)
    assert_whole(target, step=3, seed=3)
    assert names(tmp_path) == ["c"]


@pytest.mark.parametrize(
    "moment", ["begun", "in a shard", "before the manifest", "after the manifest", "before rename 1"]
)
def test_killed_while_saving_beside_older_ones(moment: str, tmp_path: Path) -> None:
    save(tmp_path / "step-00000001", step=1, seed=1)
    child = run_child(CHILD, str(tmp_path / "step-00000002"), moment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert latest(tmp_path).name == "step-00000001"
    assert_whole(latest(tmp_path), step=1, seed=1)
    assert len(names(tmp_path)) > 1
    save(tmp_path / "step-00000003", step=3, seed=3)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_dead_save_is_put_back_by_the_next_one(tmp_path: Path) -> None:
    save(tmp_path / "c", step=1, seed=1)
    run_child(CHILD, str(tmp_path / "c"), "after rename 1")
    assert "c" not in names(tmp_path)
    save(tmp_path / "other", step=5)
    assert names(tmp_path) == ["c", "other"]
    assert_whole(tmp_path / "c", step=1, seed=1)


LOOP = """
import sys
import checkpoint_builders as builders
step = 1
while True:
    step += 1
    builders.save(sys.argv[1], step=step, seed=step % 5)
    print(step, flush=True)
"""


def test_killed_from_outside_at_random_moments(tmp_path: Path) -> None:
    save(tmp_path / "c", step=1, seed=1)
    rng = random.Random(7)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path / "c")],
            env=child_env(),
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline()
                time.sleep(rng.random() * 0.05)  # at any moment of a save
            finally:
                child.kill()
        step = Checkpoint.open(tmp_path / "c").manifest.step
        assert step > 1
        assert_whole(tmp_path / "c", step=step, seed=step % 5)
    save(tmp_path / "c", step=1)
    assert names(tmp_path) == ["c"]


def test_a_living_save_is_left_alone(tmp_path: Path) -> None:
    with begin(tmp_path / "a") as draft:
        write_sparse_shard(draft.directory, "T", 0, [make_rows(5)], 3, 6)
        save(tmp_path / "b")
        assert Path(draft.directory.path).is_dir()
    assert names(tmp_path) == ["b"]


def test_interrupted_by_an_exception(tmp_path: Path) -> None:
    save(tmp_path / "c", step=1)
    draft = begin(tmp_path / "c")
    write_sparse_shard(draft.directory, "T", 0, [make_rows(5)], 3, 6)
    with pytest.raises(KeyboardInterrupt), draft:
        raise KeyboardInterrupt
    assert_whole(tmp_path / "c", step=1)
    assert names(tmp_path) == ["c"]


def test_interrupted_between_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "c", step=1)
    real, calls = LocalStorage.rename, []

    def rename(self: LocalStorage, source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, source, target)

    monkeypatch.setattr(LocalStorage, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "c", step=2)
    assert_whole(tmp_path / "c", step=1)
    assert names(tmp_path) == ["c"]


def test_never_replaces_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="home: that directory holds other things and no checkpoint"):
        save(tmp_path / "home")
    with pytest.raises(CheckpointError, match="there is a file of that name"):
        save(tmp_path / "home/thesis.txt")
    with pytest.raises(CheckpointError, match="must be a directory with a name"):
        begin("/")
    assert (tmp_path / "home/thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    assert_whole(tmp_path / "empty", step=1)


def test_leftovers_that_are_not_ours_stay(tmp_path: Path) -> None:
    (tmp_path / ".c.tmp-0123456789ab").mkdir()
    (tmp_path / ".c.tmp-notours").mkdir()
    save(tmp_path / "c")
    assert names(tmp_path) == [".c.tmp-0123456789ab", ".c.tmp-notours", "c"]


def fail_with(number: int, after: int) -> type[SyncedFile]:
    class Failing(SyncedFile):
        written = 0

        def write(self, data: bytes) -> int:
            Failing.written += len(data)
            if Failing.written > after:
                raise OSError(number, os.strerror(number))
            return super().write(data)

    return Failing


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full(share: float, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "c", step=1)
    total = sum(file.stat().st_size for file in (tmp_path / "c").rglob("*") if file.is_file())
    after = int(share * total)
    monkeypatch.setattr("sparsefleet.checkpoint.storage.local.SyncedFile", fail_with(number, after))
    with pytest.raises(
        CheckpointError, match=r"disk full.* while saving .*/\.?c.*previous checkpoint is whole"
    ) as caught:
        save(tmp_path / "c", step=2)
    assert str(tmp_path) in str(caught.value)
    monkeypatch.undo()
    assert names(tmp_path) == ["c"]
    assert_whole(tmp_path / "c", step=1)


def test_disk_full_noticed_only_by_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path / "c", step=1)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match="disk full while saving"):
        save(tmp_path / "c", step=2)
    monkeypatch.undo()
    assert names(tmp_path) == ["c"]
    assert_whole(tmp_path / "c", step=1)


def test_a_large_file_goes_to_disk_piece_by_piece_and_leaves_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    sync, advise = os.fdatasync, os.posix_fadvise

    def noted_sync(handle: int) -> None:
        called.append("sync")
        sync(handle)

    def noted_advice(handle: int, start: int, size: int, advice: int) -> None:
        called.append("leave" if (start, size, advice) == (0, 0, os.POSIX_FADV_DONTNEED) else "what?")
        advise(handle, start, size, advice)

    monkeypatch.setattr(os, "fdatasync", noted_sync)
    monkeypatch.setattr(os, "posix_fadvise", noted_advice)
    monkeypatch.setattr("sparsefleet.checkpoint.storage.local.SETTLE_BYTES", 1000)
    for name, sizes, calls in (
        ("small", [999], []),
        ("large", [600, 300, 600, 10, 2000], ["sync", "leave", "sync", "leave", "leave"]),
    ):
        called.clear()
        output = LocalStorage().open_output(str(tmp_path / name))
        for size in sizes:
            assert output.write(bytes(size)) == size
        output.close()
        assert called == calls
        assert (tmp_path / name).read_bytes() == bytes(sum(sizes))


def test_a_disk_that_is_full_within_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fdatasync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path / "c", step=1)
    monkeypatch.setattr("sparsefleet.checkpoint.storage.local.SETTLE_BYTES", 100)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(CheckpointError, match="disk full while saving"):
        save(tmp_path / "c", step=2)
    monkeypatch.undo()
    assert names(tmp_path) == ["c"]
    assert_whole(tmp_path / "c", step=1)


def test_other_refusals_are_told_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsefleet.checkpoint.storage.local.SyncedFile", fail_with(errno.EIO, 0))
    with pytest.raises(CheckpointError, match=r"cannot write .*part-00000-000.parquet: .*Input/output error"):
        save(tmp_path / "c")


FULL = """
import sys
import checkpoint_builders as builders
from sparsefleet.core.errors import CheckpointError
builders.save(sys.argv[1], step=1, seed=1)
try:
    builders.save(sys.argv[1], step=2, rows=builders.make_rows(200_000))
except CheckpointError as error:
    print(error)
builders.assert_whole(sys.argv[1], step=1, seed=1)
import os
print(sorted(os.listdir(os.path.dirname(sys.argv[1]))))
"""


def test_real_file_size_limit(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "c")],
        env=child_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert child.returncode == 0, child.stderr
    message, listing = child.stdout.splitlines()
    assert "disk full (file size limit reached) while saving" in message
    assert "part-00000-000.parquet" in message
    assert listing == "['c']"
    assert_whole(tmp_path / "c", step=1, seed=1)


def test_real_full_disk(tmp_path: Path) -> None:
    """A tmpfs of 1 MiB in a mount namespace of its own, where the system lets us make one."""
    script = 'mount -t tmpfs -o size=1m none "$1" || exit 77; exec "$2" -c "$3" "$1/c"'
    if not shutil.which("unshare"):
        pytest.skip("no unshare(1) here")
    child = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            str(tmp_path),
            sys.executable,
            FULL,
        ],
        env=child_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if child.returncode in (1, 77) and "Traceback" not in child.stderr:
        pytest.skip(f"no mount namespace here: {child.stderr.strip()}")
    assert child.returncode == 0, child.stderr
    message, listing = child.stdout.splitlines()
    assert "disk full while saving" in message
    assert "No space left on device" in message
    assert listing == "['c']"


def test_a_failing_table_is_not_taken_for_a_disk(tmp_path: Path) -> None:
    def rows() -> Iterator[TableRows]:
        yield from chunked(make_rows(10), 5)
        raise RuntimeError("the table broke")

    with pytest.raises(RuntimeError, match="the table broke"), begin(tmp_path / "c") as draft:
        write_sparse_shard(draft.directory, "T", 0, rows(), 3, 6)
    assert names(tmp_path) == []


def test_a_retried_shard_replaces_the_first_try(tmp_path: Path) -> None:
    with begin(tmp_path / "c") as draft:
        write_sparse_shard(draft.directory, "T", 0, [make_rows(5)], 3, 6)
        (entry,) = write_sparse_shard(draft.directory, "T", 0, [make_rows(9)], 3, 6)
        assert (draft.directory / entry.path).size() == entry.bytes
        assert entry.rows == 9
