"""A run's folder: which checkpoint is the newest, and which ones go."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_builders import save

from sparsefleet.checkpoint import cut_path, latest, loadable, point_latest, prune, step_path
from sparsefleet.core.errors import CheckpointError


def save_steps(folder: Path, *steps: int) -> None:
    for hour, step in enumerate(steps):
        point_latest(save(step_path(folder, step), step=step, created=f"2026-01-31T{hour:02d}:00:00.000000Z"))


def test_names() -> None:
    assert step_path("/runs/a", 1234).path == "/runs/a/step-00001234"
    assert step_path("/runs/a", 123456789012).name == "step-123456789012"
    with pytest.raises(CheckpointError, match="step=-1 must be 0 or above"):
        step_path("/runs/a", -1)


def test_latest_of_a_checkpoint_is_itself(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    assert latest(tmp_path / "step-00000001").name == "step-00000001"


def test_latest_of_a_folder_is_the_newest(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 200, 30)  # went back to step 1 and trained on from there
    assert latest(tmp_path).name == "step-00000030"
    assert (tmp_path / "latest").read_text() == "step-00000030\n"


def test_latest_passes_over_what_is_damaged(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3)
    (tmp_path / "step-00000003/manifest.json").write_text("{")
    (tmp_path / "step-00000002/buffers.safetensors").unlink()
    assert latest(tmp_path).name == "step-00000001"
    (tmp_path / "step-00000001/manifest.json").write_text("[]")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* can be loaded: .*step-00000003/manifest.json: not a JSON"
    ):
        latest(tmp_path)


def test_latest_of_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match=r"no checkpoint at .*: it holds neither manifest.json nor a step-"):
            latest(path)


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 200, 30, 40)
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-00000050").mkdir()  # a prune that was killed
    assert prune(tmp_path, keep=2) == ["step-00000001", "step-00000050", "step-00000200"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "latest",
        "notes",
        "step-00000030",
        "step-00000040",
    ]
    assert prune(tmp_path, keep=2) == []
    with pytest.raises(CheckpointError, match="keep=0 must be 1 or above"):
        prune(tmp_path, keep=0)


def test_prune_leaves_damaged_ones_to_people(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    (tmp_path / "step-00000001/manifest.json").write_text("{")
    assert prune(tmp_path, keep=1) == []
    assert (tmp_path / "step-00000001").is_dir()


def test_the_newest_cut_is_the_one_that_the_job_counted_last_whatever_clocks_say(tmp_path: Path) -> None:
    """The host that takes cuts may be another one by now, whose clock is behind; and clocks jump."""
    names = []
    for hour, step in ((12, 10), (11, 20), (3, 30), (23, 20)):
        cut = cut_path(tmp_path, step)
        point_latest(save(cut, step=step, created=f"2026-01-31T{hour:02d}:00:00.000000Z"))
        names.append(cut.name)
        assert latest(tmp_path).name == cut.name
    assert names == ["step-00000010-0001", "step-00000020-0002", "step-00000030-0003", "step-00000020-0004"]
    assert [cut.location.name for cut in loadable(tmp_path)] == names[::-1]
    assert prune(tmp_path, keep=2) == names[:2]
    assert cut_path(tmp_path, 5).name == "step-00000005-0005"


def test_numbers_of_cuts_are_compared_as_numbers(tmp_path: Path) -> None:
    """After ten thousand cuts a number has one more digit."""
    for number, hour in (("9999", 12), ("10000", 11)):
        save(tmp_path / f"step-00000001-{number}", step=1, created=f"2026-01-31T{hour:02d}:00:00.000000Z")
    assert latest(tmp_path).name == "step-00000001-10000"
    assert cut_path(tmp_path, 1).name == "step-00000001-10001"
