"""What the two readers of files share: their settings, by constructor or, as in Fluid, by setters before the
first epoch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.batching import Cutter, check_batch_size
from sparsefleet.data.files import expanded, local_name
from sparsefleet.data.formats.base import BadSamples, Format, Unit
from sparsefleet.data.pass_reader import PassReader, check_threads
from sparsefleet.data.readahead import check_capacity
from sparsefleet.data.split import parse_unit, plan_units
from sparsefleet.data.units import files_with_sizes

Path = str | os.PathLike[str]
Layout = Sequence[tuple[str, str]]
"""(name, kind) of every slot of a sample, in order; kind is dense, sparse or label."""

PIECES_PER_THREAD = 4
"""Several threads get more pieces than there are threads, so that they finish at about the same time."""


class FileReader(PassReader):
    def __init__(
        self,
        files: Path | Sequence[Path] | None = None,
        format: Format | None = None,
        batch_size: int = 1000,
        *,
        threads: int = 1,
        on_bad_row: str = "error",
        capacity: int = 16,
        drop_last: bool = False,
    ) -> None:
        """
        files: paths, read in this order.
        format: how a file becomes samples.
        batch_size: samples in a batch; only the last that each reading thread reads may be shorter.
        threads: streams of an epoch that is not told how many, and threads that load into memory.
        on_bad_row: error, or skip (and count).
        capacity: batches that each stream's reading thread keeps ready.
        drop_last: leave out a last batch that is shorter.
        """
        super().__init__()
        self._files: list[str] | None = None if files is None else _file_list(files)
        self._listed = False
        """`_files` may name folders and patterns too."""
        self._found: list[str] | None = None
        """The files behind them, once somebody has asked."""
        self._format = format
        self._pipe_command: str | None = None
        self._schema: Schema | None = None
        self._layout: Layout | None = None
        self._inputs: Inputs | None = None
        self._place: str | None = None
        self.batch_size = check_batch_size(batch_size)
        self.threads = check_threads(threads)
        self.on_bad_row = BadSamples(on_bad_row).policy
        self.read_ahead = check_capacity(capacity)
        self.drop_last = drop_last

    # Fluid's names: thin, and only before the first epoch.

    def set_filelist(self, files: Sequence[Path]) -> None:
        """Files to read in this order; a folder or a pattern stands for its files."""
        self._before_first_use("set_filelist")
        self._files, self._listed, self._found = _file_list(files), True, None

    def set_batch_size(self, batch_size: int) -> None:
        self._before_first_use("set_batch_size")
        self.batch_size = check_batch_size(batch_size)

    def set_thread(self, threads: int) -> None:
        self._before_first_use("set_thread")
        self.threads = self.asked_threads = check_threads(threads)

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Where files lie whose names are paths only: fs_name "hdfs://host:port", fs_ugi "user,password".

        The user goes with each request; the password is not needed: HDFS itself asks for none, and a secured one takes
        a Kerberos ticket (kinit).
        """
        self._before_first_use("set_hdfs_config")
        self._place, self._found = _place(fs_name, fs_ugi), None

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Only samples in memory can be shuffled by slots."""
        raise ConfigError(
            f"set_fea_eval is for slots_shuffle, and {type(self).__name__} streams its samples: "
            'use create_dataset("InMemoryDataset"), load_into_memory() and slots_shuffle([names])'
        )

    def set_pipe_command(self, command: str) -> None:
        """Samples are what this shell command prints in MultiSlot text when a file is its standard input."""
        self._before_first_use("set_pipe_command")
        if not isinstance(command, str) or not command.strip():
            raise ConfigError(
                f"pipe_command={command!r} must be a shell command, such as 'python dataset_generator.py'"
            )
        self._pipe_command, self._format = command, None

    def set_use_var(self, variables: Any) -> None:
        """The inputs in the order in which samples give them: a Schema, names, or (name, dense width) pairs."""
        from sparsefleet.data.dataset_factory import inputs_of

        self._before_first_use("set_use_var")
        self._schema, self._layout = inputs_of(variables)
        self._format = None

    def set_format(self, format: Format) -> None:
        """Read files with this format instead of a pipe command."""
        self._before_first_use("set_format")
        self._format = format

    def _before_first_use(self, setter: str) -> None:
        if self._pass is not None:
            raise ConfigError(f"{setter} after the first epoch has started; settings are fixed from then on")

    @property
    def files(self) -> list[str]:
        if not self._files:
            raise ConfigError(f"{type(self).__name__} has no files to read: give files=[…], or call set_filelist")
        if self._found is None:
            names = self._files if self._place is None else [_placed(self._place, name) for name in self._files]
            self._found = _file_list(expanded(names)) if self._listed else names
        return self._found

    @property
    def format(self) -> Format:
        if self._format is None:
            if self._schema is None:
                raise ConfigError(
                    f"{type(self).__name__} does not know how to read its files: give format=…, "
                    f"or call set_use_var with a schema or the names of the inputs (and set_pipe_command)"
                )
            from sparsefleet.data.dataset_factory import multi_slot_format

            self._format = multi_slot_format(self._schema, self._layout, self._pipe_command)
        return self._format

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        return self._schema if self._format is None and self._schema is not None else self.format.schema

    def inputs(self) -> Inputs:
        if self._inputs is None:
            self._inputs = self.format.inputs([parse_unit(name).file for name in self.files])
        return self._inputs.vouched() if self.same_inputs else self._inputs

    def _cutter(self) -> Cutter:
        return Cutter(self.batch_size, drop_last=self.drop_last)

    def _nothing(self) -> str:
        files = self.files
        where = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}"
        skipped = self.skipped()
        if not skipped:
            return f"there are no samples in {where}"
        reasons = "; ".join(f"{count} × {reason}" for reason, count in skipped.items())
        return f"there are no good samples in {where}; skipped: {reasons}"

    def _plan_files(self, threads: int) -> tuple[list[list[Any]], list[Unit]]:
        """The files with their sizes, and the units to read them in."""
        pieces = 1 if threads == 1 else threads * PIECES_PER_THREAD
        return self._sized_files(), plan_units(self.files, pieces, self.format.plan)

    def _sized_files(self) -> list[list[Any]]:
        """The files with their sizes, each once: of a file that is shared out by ranges, several may be ours."""
        return files_with_sizes(self._file_names())

    def _file_names(self) -> list[str]:
        return list(dict.fromkeys(parse_unit(name).file for name in self.files))


def unit_lengths(files: Sequence[Sequence[Any]], units: Sequence[Unit]) -> list[int | None]:
    sizes: dict[str, int | None] = {file: size for file, size, *_ in files}
    lengths: list[int | None] = []
    for unit in units:
        end = sizes.get(unit.file) if unit.stop is None else unit.stop
        lengths.append(None if end is None else max(0, end - unit.start))
    return lengths


def _file_list(files: Path | Sequence[Path]) -> list[str]:
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    names = [local_name(file) for file in given]
    if not names:
        raise ConfigError("the list of files is empty; give at least one file")
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ConfigError(f"files are listed twice, so their samples would be too: {', '.join(twice[:3])}")
    return names


def _place(fs_name: Any, fs_ugi: Any) -> str:
    """What stands before the paths of files: hdfs://user@host:port."""
    parts = urlsplit(fs_name) if isinstance(fs_name, str) else None
    if parts is None or parts.scheme not in ("hdfs", "viewfs") or not parts.netloc or parts.path not in ("", "/"):
        raise ConfigError(
            f"set_hdfs_config(fs_name={fs_name!r:.80}): give hdfs://host:port; files elsewhere are named by their URI "
            "(set_filelist(['s3://bucket/part-0']))"
        )
    user = fs_ugi.partition(",")[0].strip() if isinstance(fs_ugi, str) else None
    if user is None:
        raise ConfigError("set_hdfs_config(fs_ugi=…): give 'user,password', or '' for the user of this process")
    return (
        f"{parts.scheme}://{quote(user)}@{parts.netloc.rpartition('@')[2]}"
        if user
        else f"{parts.scheme}://{parts.netloc}"
    )


def _placed(place: str, name: str) -> str:
    if is_uri(name):
        return name
    path = name.removeprefix("hdfs:")
    if not path.startswith("/"):
        raise ConfigError(f"{name}: with set_hdfs_config, files are paths there, from / on; local ones need no config")
    return place + quote(path)
