from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data import QueueDataset
from sparsefleet.data.files import list_files
from sparsefleet.data.split import split_files


def names(files: list[str]) -> list[str]:
    return [os.path.basename(file) for file in files]


def test_a_folder_is_its_part_files_in_natural_order(tmp_path: Path) -> None:
    for name in ("part-10", "part-2", "part-0", ".hidden", "_SUCCESS", "schema.json", "report.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    assert names(list_files(tmp_path)) == ["part-0", "part-2", "part-10"]
    assert names(list_files(str(tmp_path / "part-*"))) == ["part-0", "part-2", "part-10"]
    both = [tmp_path / "part-10", tmp_path / "part-[02]"]
    assert names(list_files(both)) == ["part-10", "part-0", "part-2"]


def test_what_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schema.json").write_text("{}")
    with pytest.raises(DataError, match="the folder holds no data files"):
        list_files(tmp_path)
    with pytest.raises(DataError, match="gone: no such file or folder; check the path"):
        list_files(tmp_path / "gone")
    with pytest.raises(DataError, match="no file matches this pattern"):
        list_files(str(tmp_path / "part-*"))
    with pytest.raises(DataError, match="no input files were given"):
        list_files([])
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="the file is empty"):
        list_files(tmp_path / "empty")

    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sparsefleet.data.files.os.listdir", refuse)  # root may list everything
    with pytest.raises(DataError, match="no permission to read it; change its mode or owner"):
        list_files(tmp_path)


def test_nothing_that_was_meant_to_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("x")
    (tmp_path / "part-1").symlink_to(tmp_path / "moved")
    for given in (tmp_path, str(tmp_path / "part-*"), tmp_path / "part-1"):
        with pytest.raises(DataError, match=r"part-1: a symbolic link to .*moved, which is not there; mend or remove"):
            list_files(given)
    (tmp_path / "moved").write_text("y")
    assert names(list_files(str(tmp_path / "part-*"))) == ["part-0", "part-1"]
    os.mkfifo(tmp_path / "part-2")
    for given in (tmp_path, str(tmp_path / "part-*")):
        with pytest.raises(DataError, match="part-2: is not a regular file"):
            list_files(given)


def test_a_folder_of_folders_names_them(tmp_path: Path) -> None:
    for name in ("test", "train"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"no data files .*; give one of the folders in it \(test, train\)"):
        list_files(tmp_path)


def test_folders_and_patterns_of_set_filelist_and_split_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    for number in (10, 2, 1):
        (tmp_path / "small" / f"part-{number}").write_text("1\n" * 100)
    (tmp_path / "small" / "schema.json").write_text("{}")
    files = [f"small/part-{number}" for number in (1, 2, 10)]
    for given, found in (
        (["small"], files),
        (["small/*-?"], files[:2]),
        ([f"file://{tmp_path}/small"], [str(tmp_path / file) for file in files]),
        (["small/part-10", "small/part-[12]"], [files[2], *files[:2]]),
        (["nothing", "small/part-1#bytes=0:10"], ["nothing", "small/part-1#bytes=0:10"]),  # refused where they are read
    ):
        dataset = QueueDataset()
        dataset.set_filelist(given)
        assert dataset.files == found
        if "nothing" not in given:
            assert split_files(given, 0, 1) == found
    shares = [split_files(["small"], worker, 3) for worker in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    for given, message in (
        (["small", "small/part-2"], "listed twice"),
        (["small/x*"], "no file matches this pattern"),
    ):
        dataset = QueueDataset()
        dataset.set_filelist(given)
        for refused in (lambda dataset=dataset: dataset.files, lambda given=given: split_files(given, 0, 1)):
            with pytest.raises((ConfigError, DataError), match=message):
                refused()
