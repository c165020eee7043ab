"""A real server process: scores, errors, switches, signals."""

import concurrent.futures
import http.client
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pyarrow as pa
import pytest
from bundle_edits import with_schema
from bundle_fixtures import NAMES, probabilities_in
from http_server import SOURCES, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import wait_until

from sparsefleet.serving import Predictor

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained.bundles[0], "--max-body", "2000000", "--max-rows", "500") as running:
        yield running


@pytest.fixture(scope="module")
def expected(trained):
    """Scores of the test rows by version."""
    return {path.name: Predictor(path).predict(trained.rows) for path in trained.bundles}


def stream_of(rows, **options):
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue().to_pybytes()


def test_a_request_gives_the_scores_that_infer_wrote(trained, server, tmp_path):
    out = tmp_path / "scores.csv"
    command = [sys.executable, "-m", "sparsefleet", "infer", str(trained.checkpoint(1))]
    command += ["--data", str(trained.data / "test"), "--output", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=100, env={"PYTHONPATH": str(SOURCES)})
    answer = server.post("/v1/predict", {"rows": trained.rows})
    assert answer.status_code == 200
    assert answer.json()["version"] == "v1"
    np.testing.assert_allclose(answer.json()["scores"], probabilities_in(out), atol=1e-6, rtol=0)


def test_every_kind_of_body_gives_the_same_scores(trained, server, expected):
    rows = trained.rows
    lists = server.post("/v1/predict", {"rows": [[row[name] for name in NAMES] for row in rows]})
    arrow = server.client.post("/v1/predict", content=stream_of(rows), headers=ARROW)
    for answer in (lists, arrow):
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["scores"], expected["v1"], atol=1e-6)
    context = {name: rows[0][name] for name in NAMES[:30]}
    candidates = [{name: row[name] for name in NAMES[30:]} for row in rows]
    answer = server.post("/v1/predict", {"context": context, "candidates": candidates})
    joined = Predictor(trained.bundles[0]).predict([{**context, **candidate} for candidate in candidates])
    np.testing.assert_allclose(answer.json()["scores"], joined, atol=1e-6)
    assert server.post("/v1/predict", {"rows": []}).json() == {"version": "v1", "scores": []}


def test_a_whole_number_is_the_category_that_its_text_is(trained, server):
    """In training categories are text; a client may well send the number that one looks like."""
    texts = [{**row, "C3": str(number), "C5": "-7"} for number, row in enumerate(trained.rows[:20])]
    numbers = [{**row, "C3": number, "C5": -7} for number, row in enumerate(trained.rows[:20])]
    wanted = server.post("/v1/predict", {"rows": texts}).json()["scores"]
    assert server.post("/v1/predict", {"rows": numbers}).json()["scores"] == wanted
    lists = server.post("/v1/predict", {"rows": [[row[name] for name in NAMES] for row in numbers]})
    assert lists.json()["scores"] == wanted
    arrow = server.client.post("/v1/predict", content=stream_of(numbers), headers=ARROW)
    np.testing.assert_allclose(arrow.json()["scores"], wanted, atol=1e-6)
    other = server.post("/v1/predict", {"rows": trained.rows[:20]}).json()["scores"]
    assert np.abs(np.subtract(other, wanted)).max() > 1e-4


def test_what_it_tells_of_itself(trained, server):
    model = server.client.get("/v1/model").json()
    assert (model["version"], model["slots"][0], model["dense"][0]) == ("v1", "C1", "I1")
    assert model["checkpoint"]["name"] == trained.checkpoint(1).name
    assert model["unknown"] == "zeros"
    assert server.client.get("/healthz").json() == {"status": "ok", "version": "v1"}
    server.post("/v1/predict", {"rows": trained.rows[:3]})
    server.post("/v1/predict", {"rows": 3})
    text = server.client.get("/metrics").text
    assert 'sparsefleet_requests_total{path="/v1/predict",status="200"}' in text
    assert 'sparsefleet_requests_total{path="/v1/predict",status="400"}' in text
    assert 'sparsefleet_model_info{version="v1"} 1' in text
    values = [float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")]
    assert values
    assert all(value >= 0 for value in values)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"I1": "many"}, "I1"),
        ({"C3": {"a": 1}}, "C3"),
        ({"C3": "x" * 70000}, "C3"),
        ({"I2": 1e300}, "I2"),
        ({"Z": 1}, "Z"),
    ],
)
def test_bad_fields_are_named(trained, server, change, field):
    answer = server.post("/v1/predict", {"rows": [trained.rows[0], {**trained.rows[1], **change}]})
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert answer.json()["row"] == 1
    assert (
        "allowed" in answer.json()["error"] or "it has" in answer.json()["error"] or "large" in answer.json()["error"]
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"rows": [NaN]}', "NaN is not a JSON number"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"rows": [' + b"1" * 10_000 + b"]}", "not JSON|must be an object"),
        (b'{"rows": [[]]}', "a row given as a list has 39 values"),
        (b'{"rows": [{}]}', "field 'I1': it is missing"),
    ],
)
def test_bodies_that_are_no_request(server, body, message):
    answer = server.client.post("/v1/predict", content=body)
    assert answer.status_code == 400
    assert any(part in answer.json()["error"] for part in message.split("|"))


def test_too_many_rows_and_too_many_bytes(trained, server):
    answer = server.post("/v1/predict", {"rows": [trained.rows[0]] * 501})
    assert answer.status_code == 400
    assert "501 rows; at most 500" in answer.json()["error"]
    answer = server.client.post("/v1/predict", content=b" " * 2_000_001)
    assert answer.status_code == 413
    assert "at most 2000000" in answer.json()["error"]
    # No length told beforehand: counted as it comes.
    answer = server.client.post("/v1/predict", content=(b" " * 100_000 for _ in range(30)))
    assert answer.status_code == 413
    assert server.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: stream_of(rows, compression="zstd"), "compressed"),
        (lambda rows: stream_of([{**row, "Z": 1} for row in rows]), "no field 'Z'"),
        (lambda rows: stream_of([{name: row[name] for name in NAMES[1:]} for row in rows]), "no column 'I1'"),
        (lambda rows: stream_of([{**row, "I1": "x"} for row in rows]), "row 0: field 'I1': not a number"),
        (lambda rows: stream_of([{**row, "I1": [1]} for row in rows]), "'I1' holds list<item: int64> where numbers"),
        (lambda rows: stream_of([{**row, "C1": 1.5} for row in rows]), "'C1' holds double where"),
        (lambda rows: stream_of(rows)[:1000], "not a readable Arrow stream"),
        (lambda rows: b"junk", "not a readable Arrow stream"),
        (lambda rows: b"", "not a readable Arrow stream"),
    ],
)
def test_arrow_bodies_that_do_not_fit(trained, server, change, message):
    answer = server.client.post("/v1/predict", content=change(trained.rows[:20]), headers=ARROW)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_allow_extra_and_allow_missing_hold_for_arrow_streams_as_for_json(trained):
    def without(rows, *names):
        return [{name: value for name, value in row.items() if name not in names} for row in rows]

    rows = trained.rows[:20]
    extra = [{**row, "experiment": "b", "position": 3.5, "seen": ["x"]} for row in rows]
    bare = [{"experiment": "b"}] * 3  # every field is missing
    for options, taken, refused in (
        (("--allow-extra",), extra, without(rows, "I1")),
        (("--allow-missing",), without(rows, "I1", "C3", "C26"), extra),
        (("--allow-extra", "--allow-missing"), without(extra, "I1", "C3", "C26"), None),
        (("--allow-extra", "--allow-missing"), bare, None),
    ):
        with serving(trained.bundles[0], *options) as server:
            want = server.post("/v1/predict", {"rows": taken})
            got = server.client.post("/v1/predict", content=stream_of(taken), headers=ARROW)
            assert (want.status_code, got.status_code) == (200, 200), (options, want.text, got.text)
            assert len(got.json()["scores"]) == len(taken)
            np.testing.assert_allclose(got.json()["scores"], want.json()["scores"], atol=1e-6)
            if refused is not None:
                for answer in (
                    server.post("/v1/predict", {"rows": refused}),
                    server.client.post("/v1/predict", content=stream_of(refused), headers=ARROW),
                ):
                    assert answer.status_code == 400, (options, answer.text)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), junk=st.binary(min_size=1, max_size=8), arrow=st.booleans())
def test_no_damaged_body_brings_it_down(trained, server, where, junk, arrow):
    body = bytearray(stream_of(trained.rows[:3]) if arrow else json.dumps({"rows": trained.rows[:3]}).encode())
    start = int(where * len(body))
    body[start : start + len(junk)] = junk
    answer = server.client.post("/v1/predict", content=bytes(body), headers=ARROW if arrow else {})
    assert answer.status_code in (200, 400), answer.text
    assert ("scores" if answer.status_code == 200 else "error") in answer.json()


def test_http_that_is_none(server):
    host, port = server.url.removeprefix("http://").split(":")
    for junk in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\ncontent-length: -3\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(junk)
            assert raw.recv(100).startswith(b"HTTP/1.1 4")
    assert server.client.get("/v1/predict").status_code == 405
    assert server.client.get("/nothing").status_code == 404
    assert server.client.get("/healthz").status_code == 200


# -- versions ----------------------------------------------------------------------------------------------------------


def test_bad_bundles_are_refused_while_the_old_one_serves(trained, expected, tmp_path):
    cut = shutil.copytree(trained.bundles[1], tmp_path / "cut")
    rows = cut / "sparse/SparseFeatFactors.rows"
    rows.write_bytes(rows.read_bytes()[:-100])
    flipped = shutil.copytree(trained.bundles[1], tmp_path / "flipped")
    data = bytearray((flipped / "sparse/SparseFeatFactors.rows").read_bytes())
    data[-1] ^= 4
    (flipped / "sparse/SparseFeatFactors.rows").write_bytes(data)
    with serving(trained.bundles[0]) as server:
        for body, status, reason in (
            ({"bundle": str(cut)}, 409, "half copied"),
            ({"bundle": str(flipped)}, 409, "damaged: its checksum"),
            ({"bundle": str(tmp_path / "none")}, 409, "no bundle at"),
            ({"bundle": str(trained.run)}, 409, "checkpoints"),
            ({"bundle": "a\0b"}, 409, "is not a path"),
            ({"bundle": "ftp://host/v1"}, 409, "give a local path or a URI"),
            ({"bundle": 3}, 400, '{"bundle": path}'),
            ({}, 400, '{"bundle": path}'),
        ):
            answer = server.post("/v1/reload", body)
            assert answer.status_code == status
            assert reason in answer.json()["error"]
        assert server.post("/v1/rollback", {}).status_code == 409
        answer = server.post("/v1/predict", {"rows": trained.rows}).json()
        assert answer["version"] == "v1"
        np.testing.assert_allclose(answer["scores"], expected["v1"], atol=1e-6)
        assert 'switches_total{outcome="refused"} 6' in server.client.get("/metrics").text


def test_a_bundle_of_another_schema_needs_a_word(trained, tmp_path):
    other = with_schema(trained.bundles[1], tmp_path / "other", lambda schema: schema.update(hash_seed=5))
    with serving(trained.bundles[0]) as server:
        answer = server.post("/v1/reload", {"bundle": str(other)})
        assert answer.status_code == 409
        assert "hash_seed: 0, now 5" in answer.json()["error"]
        assert server.client.get("/healthz").json()["version"] == "v1"
        answer = server.post("/v1/reload", {"bundle": str(other), "other_schema": True})
        assert answer.json() == {"version": "v2", "previous": "v1"}


def test_a_second_roll_back_does_not_return_to_the_bad_version(trained):
    with serving(trained.bundles[0]) as server:
        server.post("/v1/reload", {"bundle": str(trained.bundles[1])})
        assert server.post("/v1/rollback", {}).json() == {"version": "v1", "previous": None}
        answer = server.post("/v1/rollback", {})
        assert answer.status_code == 409
        assert "no earlier version" in answer.json()["error"]
        assert server.client.get("/healthz").json()["version"] == "v1"
        assert server.post("/v1/reload", {"bundle": str(trained.bundles[1])}).json()["version"] == "v2"  # if asked for


def test_the_log_has_times(trained):
    with serving(trained.bundles[0]) as server:
        server.post("/v1/reload", {"bundle": str(trained.bundles[1])})
        assert server.terminate() == 0
        said = server.process.stderr.read().splitlines()
    (switch,) = [line for line in said if "now serving v2" in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z now serving v2 from /", switch)


def test_who_may_switch(trained):
    with serving(trained.bundles[0], env={"SPARSEFLEET_TOKEN": "secret"}) as server:
        body = {"bundle": str(trained.bundles[1])}
        assert server.post("/v1/reload", body).status_code == 403
        wrong = {"authorization": "Bearer guess"}
        assert server.client.post("/v1/reload", json=body, headers=wrong).status_code == 403
        right = {"authorization": "Bearer secret"}
        assert server.client.post("/v1/reload", json=body, headers=right).json()["version"] == "v2"
        assert server.client.post("/v1/rollback", headers=right).json()["version"] == "v1"
    with serving(trained.bundles[0]) as server:
        page = {"origin": "http://evil.example"}
        assert server.client.post("/v1/reload", json=body, headers=page).status_code == 403


def test_no_request_fails_and_none_is_mixed_while_versions_switch(trained, expected):
    """10,000 requests of 16 clients during three switches and one roll-back."""
    rows, clients, each = trained.rows, 16, 625
    done = itertools.count()
    progress = [0]
    seen: list[set[str]] = []

    def client(index, url):
        host, port = url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        random = np.random.default_rng(index)
        versions = set()
        for _ in range(each):
            start = int(random.integers(0, len(rows) - 20))
            part = slice(start, start + int(random.integers(1, 20)))
            connection.request("POST", "/v1/predict", json.dumps({"rows": rows[part]}))
            answer = connection.getresponse()
            body = json.loads(answer.read())
            assert answer.status == 200, body
            np.testing.assert_allclose(body["scores"], expected[body["version"]][part], atol=1e-6, rtol=0)
            versions.add(body["version"])
            progress[0] = next(done) + 1
        connection.close()
        seen.append(versions)

    with serving(trained.bundles[0]) as server, concurrent.futures.ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, index, server.url) for index in range(clients)]
        told = []
        steps = [("/v1/reload", {"bundle": str(trained.bundles[n])}) for n in (1, 2, 0)]
        steps.insert(2, ("/v1/rollback", {}))
        for number, (path, body) in enumerate(steps):
            enough = clients * each * (number + 1) // 6
            wait_until(
                lambda enough=enough: progress[0] >= enough or all(future.done() for future in running), 100, "answers"
            )
            answer = server.post(path, body)
            assert answer.status_code == 200, answer.text
            told.append(answer.json()["version"])
        for future in running:
            future.result(timeout=100)
        assert told == ["v2", "v3", "v2", "v1"]
        assert set().union(*seen) == {"v1", "v2", "v3"}
        assert (
            f'requests_total{{path="/v1/predict",status="200"}} {clients * each}' in server.client.get("/metrics").text
        )


def test_a_pointer_is_followed(trained, tmp_path):
    for path in trained.bundles[:2]:
        shutil.copytree(path, tmp_path / path.name)
    (tmp_path / "current").write_text("v1\n")

    def point(name):
        (tmp_path / "new").write_text(name)
        (tmp_path / "new").rename(tmp_path / "current")

    def wait_for(version):
        wait_until(lambda: server.client.get("/healthz").json()["version"] == version, 20, version)

    with serving(tmp_path, "--watch-seconds", "0.1") as server:
        wait_for("v1")
        point("v2")
        wait_for("v2")
        point("nonsense")
        time.sleep(0.5)  # several looks at the pointer
        wait_for("v2")
        point("v1")
        wait_for("v1")


# -- starting and ending -----------------------------------------------------------------------------------------------


def test_sigterm_answers_what_is_under_way(trained):
    """Requests that were sent before the signal are answered; the process exits with 0."""
    with serving(trained.bundles[0], "--threads", "1") as server:
        body = json.dumps({"rows": trained.rows * 10})
        started = threading.Barrier(5)

        def ask():
            with httpx.Client(base_url=server.url, timeout=30) as client:
                client.get("/healthz")  # connected
                started.wait(timeout=10)
                return client.post("/v1/predict", content=body)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask) for _ in range(4)]
            started.wait(timeout=10)
            # Under way: the server has begun to work on them.
            wait_until(
                lambda: "sparsefleet_rows_total 0\n" not in server.client.get("/metrics").text, 20, "requests under way"
            )
            assert server.terminate() == 0
            results = [answer.result(timeout=30) for answer in answers]
        assert [result.status_code for result in results] == [200] * 4
        assert all(len(result.json()["scores"]) == len(trained.rows) * 10 for result in results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{missing}"], "no bundle at"),
        (["{bundle}", "--sparse", "tape"], "choose mmap"),
        (["{bundle}", "--port", "70000"], "port=70000"),
        (["{bundle}", "--host", "192.0.2.1"], "cannot listen"),
        (["{bundle}", "--check", "some"], "choose full or quick"),
        (["{bundle}", "--threads", "0"], "threads=0"),
    ],
)
def test_what_keeps_it_from_starting(trained, tmp_path, arguments, message):
    names = {"bundle": str(trained.bundles[0]), "missing": str(tmp_path / "none")}
    command = [sys.executable, "-m", "sparsefleet", "serve", *(word.format(**names) for word in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(SOURCES)})
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
