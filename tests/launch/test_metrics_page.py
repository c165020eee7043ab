"""`sparsefleet ray-metrics`, part by part: whatever endpoints answer, the page is served, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

aiohttp = pytest.importorskip("aiohttp", reason="Ray is not installed (pip install 'sparsefleet[ray]')")
prometheus_client = pytest.importorskip("prometheus_client")

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402

from sparsefleet.core.errors import ConfigError  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page import scrape  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.endpoints import LIST, read_endpoints, usual_folder  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.history import History  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.run import PageConfig  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.scrape import BadEndpoint, figures_at, figures_in  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.site import site  # noqa: E402
from sparsefleet.launch.on_ray.metrics_page.watch import Watch  # noqa: E402
from sparsefleet.launch.on_ray.series import SERIES  # noqa: E402

Answer = TypeVar("Answer")
LOSS = b'ray_sparsefleet_loss{Component="core",job_name="sparsefleet-1",role="worker 0"} 0.25\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
EVIL = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>'
PAGE = Path(scrape.__file__).parent


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def endpoint(answer: bytes | Callable[[socket.socket], None]) -> Iterator[str]:
    """Answers every request so: host:port."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.recv(1 << 16)
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def head_with(folder: Path, *endpoints: str) -> Path:
    (folder / LIST).write_text(json.dumps([{"labels": {"job": "ray"}, "targets": list(endpoints)}]))
    return folder


def with_session(work: Callable[[Any], Coroutine[Any, Any, Answer]]) -> Answer:
    async def run() -> Answer:
        async with aiohttp.ClientSession() as session:
            return await work(session)

    return asyncio.run(asyncio.wait_for(run(), 60))


# --- the list of endpoints


def test_the_list_is_read_as_ray_writes_it(tmp_path: Path) -> None:
    assert read_endpoints(head_with(tmp_path, "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.1:8080")) == [
        "10.0.0.1:8080",
        "10.0.0.2:8080",
    ]


def test_the_usual_folder_is_rays_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    assert usual_folder() == Path("/tmp/ray")
    monkeypatch.setenv("RAY_TMPDIR", "/large")
    assert usual_folder() == Path("/large/ray")


def test_no_folder_and_no_list_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder .*/nowhere, .*after ray start --head; if that was given another"):
        read_endpoints(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=rf"has no {LIST}: .*start one \(ray start --head\)"):
        read_endpoints(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"targets": []}', '[{"targets": 7}]', "[" * 100_000], ids=range(6))
def test_what_is_no_list_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / LIST).write_text(text)
    with pytest.raises(ConfigError, match="is not the list that Ray writes"):
        read_endpoints(tmp_path)


def test_a_huge_list_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / LIST).write_bytes(b"[" * (3 << 20))
    with pytest.raises(ConfigError, match="more than 1,048,576 bytes"):
        read_endpoints(tmp_path)


# --- one endpoint


def test_figures_are_read_as_prometheus_client_writes_them() -> None:
    registry = prometheus_client.CollectorRegistry()
    labels = ["Component", "job_name", "role"]
    auc = prometheus_client.Gauge("ray_sparsefleet_auc", "AUC", labels, registry=registry)
    auc.labels("core_worker", 'of "quotes"\\', "worker 0").set(0.75)
    auc.labels("core_worker", "sparsefleet-1", EVIL).set(0.5)
    prometheus_client.Gauge("ray_node_cpu", "Ray's own", registry=registry).set(4)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        found = with_session(lambda session: figures_at(session, f"127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert sorted(found) == [("auc", 'of "quotes"\\', "worker 0", 0.75), ("auc", "sparsefleet-1", EVIL, 0.5)]


def test_only_what_can_be_drawn_is_kept() -> None:
    lines = [
        LOSS,
        b'ray_sparsefleet_auc{job_name="j",role="worker 0"} NaN\n',
        b'ray_sparsefleet_step{job_name="j",role="worker 0"} +Inf\n',
        b'ray_sparsefleet_epoch{job_name="j"} 3\n',
        b'ray_sparsefleet_of_tomorrow{job_name="j",role="worker 0"} 3\n',
        b'ray_sparsefleet_loss{job_name="' + b"x" * 5000 + b'",role="worker 0"} 1\n',
        b"what is no line of ours may be anything { \xff\n",
    ]
    assert figures_in(b"".join(lines)) == [("loss", "sparsefleet-1", "worker 0", 0.25)]


@pytest.mark.parametrize(
    "line",
    [b'{job_name="j",role="r"} much', b'{job_name="j', b"", b"\xff\xfe{} 1", b'{job_name="j",role="r"}'],
    ids=range(5),
)
def test_garbage_of_ours_is_refused(line: bytes) -> None:
    with pytest.raises(BadEndpoint, match="answers with what cannot be read"):
        figures_in(LOSS + b"ray_sparsefleet_loss" + line + b"\n")


def test_too_many_figures_are_refused() -> None:
    with pytest.raises(BadEndpoint, match="more than 20,000 figures"):
        figures_in(LOSS * 20_001)


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n" + LOSS)
    while True:
        connection.sendall(b"#")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"ray_node_cpu 1\n" * 100_000)


def silence(connection: socket.socket) -> None:
    time.sleep(2)


BAD: dict[str, tuple[bytes | Callable[[socket.socket], None], str]] = {
    "status": (whole(b"", b"HTTP/1.1 500 Oh\r\n"), "answers with status 500"),
    "redirect": (whole(b"", b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\n"), "answers with status 302"),
    "page": (
        whole(b"<html>", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"),
        "answers with a page, not with figures",
    ),
    "no http": (b"\0\1\2 garbage\r\n\r\n", "no answer by HTTP"),
    "cut off": (HEAD + b"Content-Length: 1000\r\n\r\n" + LOSS, "no answer by HTTP"),
    "closed": (b"", "no answer by HTTP"),
    "packed": (whole(b"not packed", HEAD + b"Content-Encoding: gzip\r\n"), "no answer by HTTP"),
    "slow": (drip, "no whole answer within 0.5 s"),
    "silent": (silence, "no whole answer within 0.5 s"),
    "huge": (flood, "answers with more than 1 MiB"),
}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(scrape, "MOST_BYTES", 1 << 20)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_endpoint_ends_in_time_with_its_reason(kind: str, hasty: None) -> None:
    answer, why = BAD[kind]
    with endpoint(answer) as address, pytest.raises(BadEndpoint) as caught:
        with_session(lambda session: figures_at(session, address))
    assert why in str(caught.value)


@pytest.mark.parametrize("address", ["", "no address", "host:port", "[::1", "127.0.0.1:99999", "a\nb:1", "http://x:1"])
def test_what_is_no_address_is_a_bad_endpoint(address: str, hasty: None) -> None:
    with pytest.raises(BadEndpoint):
        with_session(lambda session: figures_at(session, address))


# --- all of them


def test_bad_endpoints_are_told_once_and_the_others_go_on(
    tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsefleet.launch.on_ray.metrics_page.watch.EVERY_SECONDS", 0.05)
    said: list[str] = []

    async def look(session: Any) -> Watch:
        watch = Watch(tmp_path, said.append)
        await watch.begin(session)
        going_on = asyncio.create_task(watch.go_on(session))
        while len(watch.history.since(watch.now() - 30, watch.now())[line]) < 4:
            assert not going_on.done()
            await asyncio.sleep(0.05)
        going_on.cancel()
        return watch

    line, down = ("loss", "sparsefleet-1", "worker 0"), nobody()
    with endpoint(whole(LOSS)) as good, endpoint(whole(b"ray_sparsefleet_loss{ 1\n")) as garbage:
        head_with(tmp_path, good, garbage, down)
        watch = with_session(look)
    assert len(said) == 1
    assert said[0].startswith("2 of 3 endpoints of Ray cannot be asked: ")
    assert f"{down} (Connection refused)" in said[0]
    assert watch.bad.keys() == {garbage, down}
    [trouble] = watch.troubles()
    assert said[0] == f"{trouble}; goes on without"


def test_a_list_that_goes_and_comes_back_is_lived_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsefleet.launch.on_ray.metrics_page.watch.EVERY_SECONDS", 0.05)
    said: list[str] = []

    async def look(session: Any) -> None:
        watch = Watch(tmp_path, said.append)
        await watch.begin(session)
        going_on = asyncio.create_task(watch.go_on(session))
        (tmp_path / LIST).unlink()
        while not watch.troubles():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        head_with(tmp_path, good)
        while watch.troubles():
            await asyncio.sleep(0.02)
        assert not going_on.done()
        going_on.cancel()

    with endpoint(whole(LOSS)) as good:
        head_with(tmp_path, good)
        with_session(look)
    assert len(said) == 1
    assert said[0].endswith("; goes on looking")


def test_a_list_of_a_cluster_that_has_ended_is_refused(tmp_path: Path) -> None:
    head_with(tmp_path, nobody(), nobody())
    with pytest.raises(ConfigError, match=r"no Ray cluster answers: .*2 of 2 endpoints .*Start a head first"):
        with_session(Watch(tmp_path, lambda text: None).begin)
    head_with(tmp_path)
    with pytest.raises(ConfigError, match="names no endpoint"):
        with_session(Watch(tmp_path, lambda text: None).begin)


# --- memory


def test_the_last_hour_is_kept_and_no_more() -> None:
    history = History(kept_seconds=100, most_lines=3)
    for now in range(0, 1000, 5):
        assert history.add(now, [("loss", "j", "worker 0", now)]) == 0
    [(line, points)] = history.since(0, 995).items()
    assert line == ("loss", "j", "worker 0")
    assert points[0][0] >= 895
    assert points[-1] == (995, 995)


def test_series_beyond_the_bound_are_refused_and_old_ones_make_room() -> None:
    history = History(kept_seconds=100, most_lines=3)
    assert history.add(0, [("loss", "j", f"worker {index}", 1.0) for index in range(5)]) == 2
    assert len(history.since(0, 1)) == 3
    assert history.add(200, [("loss", "other", f"worker {index}", 1.0) for index in range(3)]) == 0
    assert {job for _, job, _ in history.since(0, 200)} == {"other"}


def test_a_page_is_given_so_many_points_of_a_line_and_its_newest() -> None:
    history = History()
    for now in range(3600):
        history.add(float(now), [("step", "j", "worker 0", now)])
    [points] = history.since(0, 3600).values()
    assert len(points) <= 361
    assert points[-1] == (3599, 3599)
    [few] = history.since(3590, 3600).values()
    assert [time for time, _ in few] == list(range(3590, 3600))


# --- the site


async def ask(watch: Watch, *paths: str) -> list[tuple[int, str, Any]]:
    """Status, text and headers of each."""
    found = []
    async with TestClient(TestServer(site(watch))) as client:
        for path in paths:
            async with client.get(path) as answer:
                found.append((answer.status, await answer.text(), answer.headers))
    return found


def answers(watch: Watch, *paths: str) -> list[tuple[int, str, Any]]:
    return asyncio.run(asyncio.wait_for(ask(watch, *paths), 30))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    watch = Watch(tmp_path, lambda text: None)
    watch.history.add(watch.now(), [("auc", EVIL, "worker 0", 0.75), ("step", EVIL, "worker 0", 3.0)])
    return watch


def test_ray_is_told_what_it_asks_for(watch: Watch) -> None:
    grafana, prometheus, other = answers(
        watch, "/api/health", "/api/v1/query?query=vector(1)", "/api/v1/query?query=up"
    )
    assert grafana[0] == prometheus[0] == 200
    assert json.loads(grafana[1])["database"] == "ok"
    assert json.loads(prometheus[1])["status"] == "success"
    assert json.loads(prometheus[1])["data"]["result"][0]["value"][1] == "1"
    assert other[0] == 400
    assert "not a Prometheus" in json.loads(other[1])["error"]


def test_any_dashboard_of_rays_is_the_page_in_its_theme(watch: Watch) -> None:
    words = "orgId=1&kiosk=1&refresh=5s&from=now-5m&to=now"
    found = answers(
        watch,
        f"/d/rayDefaultDashboard/?{words}&theme=light",
        f"/d/rayDataDashboard/?{words}&theme=dark",
        f"/d/anything/else?{words}&theme=%3Cscript%3E",
        "/d-solo/rayDefaultDashboard/default-dashboard?panelId=24&theme=dark",
    )
    assert [status for status, _, _ in found] == [200] * 4
    light, dark, odd, panel = (text for _, text, _ in found)
    assert '<html lang="en" data-theme="light">' in light
    assert '<html lang="en" data-theme="dark">' in dark
    assert odd == light
    assert "need Prometheus and Grafana" in light
    assert "deploy/grafana/training.json" in light
    assert "No job of SparseFleet is running" in light
    assert "needs Prometheus and Grafana" in panel
    assert '<html lang="en" data-theme="dark">' in panel


def test_names_from_outside_never_become_markup(watch: Watch) -> None:
    page, figures = answers(watch, f"/d/x/?theme=dark&var-SessionName={EVIL}", "/sparsefleet/figures")
    assert "alert" not in page[1]
    assert figures[2]["Content-Type"].startswith("application/json")
    assert "script-src 'sha256-" in page[2]["Content-Security-Policy"]
    assert "unsafe" not in page[2]["Content-Security-Policy"]
    script = (PAGE / "page.js").read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script, "names of jobs and roles are set as text only"


def test_nothing_comes_from_elsewhere(watch: Watch) -> None:
    [page] = answers(watch, "/d/x/")
    text = page[1].replace("http://www.w3.org/2000/svg", "")  # a name, which nobody asks for
    assert "://" not in text
    assert "@import" not in text


def test_figures_come_with_what_they_are(watch: Watch) -> None:
    [found] = answers(watch, "/sparsefleet/figures?seconds=300")
    told = json.loads(found[1])
    assert [chart["name"] for chart in told["charts"]] == list(SERIES)
    assert told["seconds"] == 300
    charts = {chart["name"]: chart for chart in told["charts"]}
    assert charts["memory_bytes"]["lines"] == []
    assert (charts["auc"]["unit"], charts["auc"]["title"]) == ("none", "AUC of the epoch so far, by trainer")
    [line] = charts["auc"]["lines"]
    assert (line["job"], line["role"], line["points"][0][1]) == (EVIL, "worker 0", 0.75)


@pytest.mark.parametrize(("asked", "given"), [("", 3600), ("1e9", 3600), ("-5", 60), ("nan", 3600), ("9" * 5000, 3600)])
def test_spans_are_within_bounds(asked: str, given: float, watch: Watch) -> None:
    [found] = answers(watch, f"/sparsefleet/figures?seconds={asked}")
    assert json.loads(found[1])["seconds"] == given


def test_config_refuses_nonsense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port=70000 is no port"):
        PageConfig(tmp_path, port=70000)
    with pytest.raises(ConfigError, match="port=3000 is prometheus_port, too"):
        PageConfig(tmp_path, prometheus_port=3000)
