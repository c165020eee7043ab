"""An S3 server on loopback (moto's), with a bucket `clicks`; without moto tests are skipped, and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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
        self.refused: frozenset[str] = frozenset()
        """Methods of HTTP that are answered with AccessDenied."""

    def refuse(self, *methods: str) -> None:
        self.refused = frozenset(methods)

    def refusing(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """The server's application, which refuses what it is told to."""

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] not in self.refused:
                return app(environ, start_response)
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>the bucket is closed</Message></Error>"]

        return answer

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
        store = S3(port)
        server._server.app = store.refusing(server._server.app)
        yield store
    finally:
        server.stop()
