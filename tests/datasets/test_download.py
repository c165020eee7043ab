"""Downloads against a real HTTP server on loopback that can misbehave, and archives that do."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.datasets import unpack as unpack_module
from sparsefleet.datasets.download import DownloadReport, DownloadSpec, download
from sparsefleet.datasets.unpack import unpack

BODY = bytes(range(256)) * 4000


@dataclass
class Server:
    """What it serves, how it misbehaves, and what it was asked."""

    port: int = 0
    body: bytes = BODY
    etag: str | None = '"v1"'
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)
    """For each of the next answers: bytes after which the connection is cut."""
    statuses: list[int] = field(default_factory=list)
    """For each of the next requests: answer with this status instead."""
    stall: bool = False
    requests: list[dict[str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str = "data.bin") -> str:
        return f"http://127.0.0.1:{self.port}/{name}"


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(dict(self.headers))
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            if self.path.startswith("/missing"):
                self.send_error(404)
                return
            start = 0
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if state.ranges and asked and self.headers.get("If-Range") == state.etag:
                start = int(asked[1])
                if start >= len(state.body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(state.body)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(state.body) - 1}/{len(state.body)}")
            if state.etag:
                self.send_header("ETag", state.etag)
            self.send_header("Content-Length", str(len(state.body) - start))
            self.end_headers()
            rest = state.body[start:]
            if state.stall:
                self.wfile.write(rest[:1000])
                self.wfile.flush()
                state.released.wait(10)
            elif state.cut_after:
                self.wfile.write(rest[: state.cut_after.pop(0)])
            else:
                self.wfile.write(rest)

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    state.port = httpd.server_address[1]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield state
    state.released.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join(5)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetch(server: Server, out: Path, name: str = "data.bin", **settings: object) -> DownloadReport:
    overwrite = bool(settings.pop("overwrite", False))
    spec = DownloadSpec(server.url(name), **({"pause": 0.01, "timeout": 5.0} | settings))  # type: ignore[arg-type]
    return download(spec, out, overwrite=overwrite)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- fetching ---


def test_fetches_and_checks(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    spec = DownloadSpec(server.url(), sha256=sha256(BODY).upper())
    report = download(spec, tmp_path / "out", on_progress=lambda done, total: seen.append((done, total)))
    assert report.file.read_bytes() == BODY
    assert (report.bytes, report.fetched, report.sha256) == (len(BODY), len(BODY), sha256(BODY))
    assert names(tmp_path / "out") == ["data.bin"]
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))


def test_goes_on_after_a_cut_connection(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000, 200_000]
    retries: list[str] = []
    spec = DownloadSpec(server.url(), sha256=sha256(BODY), pause=0.01)
    report = download(spec, tmp_path, on_retry=lambda reason, pause: retries.append(reason))
    assert report.file.read_bytes() == BODY
    assert report.fetched == len(BODY), "no byte came twice"
    assert [request.get("Range") for request in server.requests] == [None, "bytes=300000-", "bytes=500000-"]
    assert retries[0] == "the connection was cut after 300,000 of 1,024,000 bytes"


def test_a_second_command_goes_on_where_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000]
    with pytest.raises(DataError, match=r"gave up after 1 attempts: .*cut after 300,000.*repeat the command"):
        fetch(server, tmp_path, retries=0)
    assert names(tmp_path) == ["data.bin.part", "data.bin.part.json"]
    report = fetch(server, tmp_path, sha256=sha256(BODY))
    assert report.fetched == len(BODY) - 300_000
    assert server.requests[-1]["If-Range"] == '"v1"'
    assert names(tmp_path) == ["data.bin"]


def test_a_file_that_has_changed_starts_anew(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000]
    with pytest.raises(DataError, match="gave up"):
        fetch(server, tmp_path, retries=0)
    server.body, server.etag = BODY[::-1], '"v2"'
    report = fetch(server, tmp_path)
    assert report.file.read_bytes() == BODY[::-1]
    assert report.fetched == len(BODY)


def test_a_file_from_elsewhere_is_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"junk")
    (tmp_path / "data.bin.part.json").write_text('{"url": "http://elsewhere/data.bin", "validator": "\\"v1\\""}')
    assert fetch(server, tmp_path).file.read_bytes() == BODY


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_without_a_firm_version_it_starts_anew(server: Server, tmp_path: Path, etag: str | None) -> None:
    server.etag, server.cut_after = etag, [300_000]
    report = fetch(server, tmp_path)
    assert report.file.read_bytes() == BODY
    assert all("Range" not in request for request in server.requests)


def test_a_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut_after = False, [300_000]
    report = fetch(server, tmp_path, sha256=sha256(BODY))
    assert report.file.read_bytes() == BODY
    assert report.fetched == 300_000 + len(BODY)


def test_a_server_that_never_gets_further_ends(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut_after = False, [300_000] * 20
    with pytest.raises(DataError, match="gave up after 3 attempts"):
        fetch(server, tmp_path, retries=2)
    assert len(server.requests) == 3


def test_all_there_but_not_yet_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY)
    notes = '{"url": "%s", "validator": "\\"v1\\""}' % server.url()  # noqa: UP031 (braces)
    (tmp_path / "data.bin.part.json").write_text(notes)
    report = fetch(server, tmp_path, sha256=sha256(BODY))
    assert (report.fetched, report.file.read_bytes()) == (0, BODY)


def test_a_server_that_stops_sending(server: Server, tmp_path: Path) -> None:
    server.stall = True
    with pytest.raises(DataError, match="gave up after 1 attempts: the server stopped sending"):
        fetch(server, tmp_path, timeout=0.2, retries=0)


def test_passing_trouble_is_retried(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 500]
    assert fetch(server, tmp_path).file.read_bytes() == BODY


def test_lasting_trouble_is_told(server: Server, tmp_path: Path) -> None:
    server.statuses = [503] * 9
    with pytest.raises(DataError, match="gave up after 3 attempts: the server answered 503 Service Unavailable"):
        fetch(server, tmp_path, retries=2)


def test_not_found(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/missing: the server answered 404 Not Found; is the address right\?"):
        fetch(server, tmp_path, "missing")
    assert len(server.requests) == 1


def test_no_server(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match=r"cannot reach http://.*Connection refused. Is there a network\?"):
        download(DownloadSpec(f"http://127.0.0.1:{port}/x"), tmp_path)


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"wrong checksum: its SHA-256 is {sha256(BODY)} .*expected 00.*removed"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert not (tmp_path / "data.bin").exists()
    assert fetch(server, tmp_path, sha256=sha256(BODY)).fetched == len(BODY)


def test_what_is_there_is_checked_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path)
    assert fetch(server, tmp_path, sha256=sha256(BODY)).fetched == 0
    with pytest.raises(DataError, match=r"wrong checksum.*--overwrite fetches it again"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert (tmp_path / "data.bin").exists()
    assert fetch(server, tmp_path, overwrite=True).fetched == len(BODY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "file:///etc/passwd"}, "is not an address; give one that starts with http:// or https://"),
        ({"url": "example.com/data"}, "is not an address"),
        ({"url": "http://host/a b"}, "is not an address.*%20"),
        ({"url": "http://[::1/x"}, "is not an address"),
        ({"sha256": "abc"}, "--sha256 'abc' is not a SHA-256 sum; give 64 hexadecimal digits"),
        ({"timeout": 0}, "--timeout 0 must be above 0"),
        ({"retries": -1}, "--retries -1 must be 0 or above"),
    ],
)
def test_refuses_nonsense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DownloadSpec(**({"url": "http://host/x"} | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://host/a/data.tar.gz?key=1", "data.tar.gz"),
        ("http://host/", "download"),
        ("http://host/..", "download"),
        ("http://host/a%2F..%2Fb%5Cc.txt", "c.txt"),
    ],
)
def test_file_name_stays_in_the_folder(url: str, name: str) -> None:
    assert DownloadSpec(url).file_name == name


def test_folder_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to"):
        fetch(server, tmp_path / "file" / "out")


# --- unpacking ---


def tar_of(path: Path, members: dict[str, bytes], *special: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in special:
            tar.addfile(info)
    return path


def tar_member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_of(path: Path, members: dict[str, bytes], link: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            packed.writestr(info, "/etc/passwd")
    return path


def test_fetches_and_unpacks(server: Server, tmp_path: Path) -> None:
    server.body = tar_of(tmp_path / "a.tar.gz", {"raw/part-0": b"zero", "raw/part-1": b"one"}).read_bytes()
    report = fetch(server, tmp_path / "out", "a.tar.gz")
    assert report.unpacked == ("raw",)
    assert (tmp_path / "out" / "raw" / "part-1").read_bytes() == b"one"
    assert not [name for name in names(tmp_path / "out") if name.startswith(".unfinished")]
    again = fetch(server, tmp_path / "out", "a.tar.gz")
    assert (again.fetched, again.unpacked) == (0, ("raw",))


def test_no_unpacking_when_not_wanted(server: Server, tmp_path: Path) -> None:
    server.body = gzip.compress(b"text")
    assert fetch(server, tmp_path, "x.gz", unpack=False).unpacked == ()
    assert names(tmp_path) == ["x.gz"]


def test_unpacks_zip_and_gz(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert unpack(zip_of(tmp_path / "a.zip", {"x/y.txt": b"y", "z": b"z"}), out) == ["x", "z"]
    (tmp_path / "part-0.gz").write_bytes(gzip.compress(b"rows"))
    assert unpack(tmp_path / "part-0.gz", out) == ["part-0"]
    assert (out / "x" / "y.txt").read_bytes() == b"y"
    assert (out / "part-0").read_bytes() == b"rows"


def test_what_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tgz", {"x": b"new"})
    out = tmp_path / "out"
    out.mkdir()
    (out / "x").write_text("old")
    with pytest.raises(ConfigError, match=r"not unpacked, for .* already has x; .*--overwrite"):
        unpack(archive, out)
    assert names(out) == ["x"]
    unpack(archive, out, overwrite=True)
    assert (out / "x").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (tar_member("../evil", tarfile.DIRTYPE), "'../evil' would be extracted .* outside the destination"),
        (tar_member("a/../../evil", tarfile.REGTYPE), "outside the destination"),
        (tar_member("link", tarfile.SYMTYPE, "/etc/passwd"), "'link' is a link"),
        (tar_member("link", tarfile.LNKTYPE, "good"), "'link' is a link"),
        (tar_member("link", tarfile.SYMTYPE, "good"), "'link' is a link"),
        (tar_member("pipe", tarfile.FIFOTYPE), "'pipe' is a special file"),
        (tar_member("disk", tarfile.BLKTYPE), "'disk' is a special file"),
    ],
)
def test_hostile_tar(tmp_path: Path, member: tarfile.TarInfo, message: str) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", {"good": b"good"}, member)
    with pytest.raises(DataError, match=f"refused to unpack: .*{message}.*nothing was unpacked"):
        unpack(archive, tmp_path / "out" / "deep")
    assert names(tmp_path / "out" / "deep") == []
    assert names(tmp_path) == ["a.tar.gz", "out"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:/evil"])
def test_members_of_a_zip_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    archive = zip_of(tmp_path / "a.zip", {"good": b"good", name: b"evil"})
    unpack(archive, tmp_path / "out" / "deep")
    assert names(tmp_path) == ["a.zip", "out"]
    assert names(tmp_path / "out") == ["deep"]
    assert "good" in names(tmp_path / "out" / "deep")


def test_an_absolute_member_of_a_tar_stays_in_the_folder(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", {"/etc/evil": b"evil"})
    assert unpack(archive, tmp_path / "out") == ["etc"]


def test_a_link_in_a_zip_becomes_a_plain_file(tmp_path: Path) -> None:
    unpack(zip_of(tmp_path / "a.zip", {}, link="link"), tmp_path / "out")
    assert not (tmp_path / "out" / "link").is_symlink()
    assert (tmp_path / "out" / "link").read_text() == "/etc/passwd"


def test_progress_of_unpacking_reaches_the_size_of_the_archive(tmp_path: Path) -> None:
    noise = os.urandom(3_000_000)
    for archive in (
        tar_of(tmp_path / "a.tgz", {"x": noise}),
        zip_of(tmp_path / "a.zip", {"y": noise}),
        tmp_path / "z.gz",
    ):
        if archive.suffix == ".gz":
            archive.write_bytes(gzip.compress(noise))
        seen: list[tuple[int, int | None]] = []
        unpack(archive, tmp_path / "out", on_progress=lambda done, total, seen=seen: seen.append((done, total)))  # type: ignore[misc]
        size = archive.stat().st_size
        assert seen[0] == (0, size)
        assert seen == sorted(seen)
        assert len(seen) > 3
        assert seen[-1][0] > 0.99 * size


def test_damaged_archives(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "a.tar.gz", {"x": bytes(range(256)) * 400}).read_bytes()
    for name, data in {
        "cut.tar.gz": whole[: len(whole) // 2],
        "junk.tar.gz": b"junk" * 100,
        "junk.zip": b"junk" * 100,
        "junk.gz": b"junk",
        "cut.gz": gzip.compress(b"x" * 10_000)[:-9],
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name}: damaged or cut off"):
            unpack(tmp_path / name, tmp_path / "out")
        assert names(tmp_path / "out") == []


def test_an_archive_that_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(DataError, match=r"has 0.0 GB free"):
        unpack(tar_of(tmp_path / "a.tgz", {"x": b"x" * 100}), tmp_path / "out")


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"is no archive; .tar, .tar.gz, .tgz, .zip and .gz can be unpacked"):
        unpack(tmp_path / "a.txt", tmp_path / "out")
