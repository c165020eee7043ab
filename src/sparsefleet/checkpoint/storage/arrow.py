"""Whatever pyarrow opens (s3://, gs://, hdfs://): no rename to rely on, a file appears when it is closed."""

from __future__ import annotations

import posixpath
from typing import Any

from pyarrow import fs

from sparsefleet.checkpoint.storage.base import Entry, Storage


class ArrowStorage(Storage):
    def __init__(self, filesystem: fs.FileSystem) -> None:
        self.filesystem = filesystem

    def open_output(self, path: str) -> Any:
        self.make_dir(posixpath.dirname(path))
        # compression=None: the default would compress by the file name's ending.
        return self.filesystem.open_output_stream(path, compression=None)

    def open_input(self, path: str) -> Any:
        return self.filesystem.open_input_file(path)

    def size(self, path: str) -> int | None:
        found = self.filesystem.get_file_info(path)
        return int(found.size) if found.type == fs.FileType.File else None

    def list(self, path: str) -> list[Entry]:
        found = self.filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        entries = [Entry(info.base_name, info.type == fs.FileType.Directory) for info in found]
        return sorted(entries, key=lambda entry: entry.name)

    def make_dir(self, path: str) -> None:
        if path:
            self.filesystem.create_dir(path, recursive=True)

    def delete_dir(self, path: str) -> None:
        if self.filesystem.get_file_info(path).type == fs.FileType.Directory:
            self.filesystem.delete_dir(path)

    def delete_file(self, path: str) -> None:
        if self.filesystem.get_file_info(path).type == fs.FileType.File:
            self.filesystem.delete_file(path)

    def replace_file(self, path: str, data: bytes) -> None:
        # One put: atomic on object stores. A file torn elsewhere is refused by whoever reads it.
        output = self.open_output(path)
        try:
            output.write(data)
        finally:
            output.close()
