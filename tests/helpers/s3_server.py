"""An S3 server on loopback (moto's), with a bucket `clicks`; without moto tests are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

BUCKET = "clicks"


class S3:
    def __init__(self, port: int) -> None:
        from pyarrow import fs

        self.options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        self.filesystem = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region="us-east-1",
            access_key="test",
            secret_key="test",
            allow_bucket_creation=True,
        )
        self.filesystem.create_dir(BUCKET)

    def uri(self, path: str) -> str:
        return f"s3://test:test@{BUCKET}/{path}?{self.options}"

    def put(self, path: str, data: bytes) -> None:
        with self.filesystem.open_output_stream(f"{BUCKET}/{path}", compression=None) as file:
            file.write(data)

    def put_folder(self, folder: Path, under: str) -> None:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{under}/{file.relative_to(folder)}", file.read_bytes())


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    moto = pytest.importorskip(
        "moto.server", reason="no moto: S3 is not tested (pip install 'moto[s3]' flask flask-cors)"
    )
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield S3(port)
    finally:
        server.stop()
