"""The server's own description: it is a right one, it is the model's, and whatever it allows gives no 500."""

import json
import re
from dataclasses import replace

import pytest
from http_server import serving
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from sparsefleet.serving import Predictor
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.openapi import openapi

ROUTES = {
    *("/v1/predict", "/v1/model", "/v1/reload", "/v1/rollback", "/v1/canary", "/v1/shadow"),
    *("/healthz", "/readyz", "/metrics", "/openapi.json"),
}


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained.bundles[0], "--max-rows", "50", "--max-body", "300000") as running:
        yield running


def test_it_names_every_route_and_the_models_fields(server):
    found = server.client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    assert set(found["paths"]) == ROUTES
    row = found["components"]["schemas"]["Row"]
    assert {"I1", "C26"} <= set(row["required"])
    assert not row["additionalProperties"]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            if path != "/readyz":
                assert server.client.request("TRACE", path).status_code == 405
            assert "200" in operation["responses"], (path, method)
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found))) <= set(found["components"]["schemas"])


def integers_of(bundle, field):
    """The whole numbers that the description allows as the field's value, and in a list of them."""
    row = openapi(bundle, ServeConfig("bundle"))["components"]["schemas"]["Row"]
    one, *_, listed, _null = row["properties"][field]["anyOf"]
    assert one in listed["items"]["anyOf"]
    return one


def test_whole_numbers_below_zero_are_values_and_no_keys(trained, server):
    bundle = Predictor(trained.bundles[0]).bundle
    assert integers_of(bundle, "C1")["minimum"] < -1
    row = {**trained.rows[0], "C1": -1}
    said = [server.post("/v1/predict", {"rows": [{**row, "C1": value}]}).json() for value in (-1, "-1", [-1])]
    assert said[0]["scores"] == said[1]["scores"] == said[2]["scores"]
    slots = tuple(replace(slot, keys=True) if slot.name == "C1" else slot for slot in bundle.schema.slots)
    ready = replace(bundle, schema=replace(bundle.schema, slots=slots))
    assert integers_of(ready, "C1")["minimum"] == 0
    assert integers_of(ready, "C2")["minimum"] < -1


def run_cases(server, count):
    """Requests that the description allows, and some that it does not: each is answered as it says.

    Routes without a body have few different requests; predictions, which come last, make up for them.
    """
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install schemathesis")
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen, asked, wanted = {}, {}, {}
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= ROUTES - {"/openapi.json"}  # it leaves its own source out
    modes = list(schemathesis.GenerationMode)
    for operation in sorted(operations, key=lambda one: one.path == "/v1/predict"):
        raw = operation.definition.raw
        declared = {int(code) for code in raw["responses"]}
        takes_something = bool(raw.get("parameters") or raw.get("requestBody"))
        name = f"{operation.method.upper()} {operation.path}"
        asked[name], wanted[name] = 0, 0
        for number, mode in enumerate(modes):
            share = count // (len(modes) * len(operations))
            if operation.path == "/v1/predict":
                share = 1 + (count - sum(seen.values())) // (len(modes) - number)
            try:
                strategy = operation.as_strategy(generation_mode=mode)
                asked[name] += _ask(strategy, declared, max(1, share), seen)
                wanted[name] += max(1, share) if takes_something else 1
            except (Unsatisfiable, schemathesis.errors.SchemathesisError):
                # A route without parameters has no wrong ones.
                assert mode is schemathesis.GenerationMode.NEGATIVE, f"{name}: nothing was asked"
                assert not takes_something, f"{name}: nothing wrong was asked"
    # Some are drawn twice, or fit nothing; an operation that was as good as left out is told.
    few = {name: f"{asked[name]} of {wanted[name]}" for name in wanted if asked[name] < max(1, wanted[name] // 2)}
    assert not few, f"requests of each operation: {asked}; too few: {few}"
    return seen


def _ask(strategy, declared, examples, seen):
    """How many were asked."""
    count = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case):
        nonlocal count
        answer = case.call(timeout=30)
        count += 1
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        # 404 and 405 answer requests that are not the operation's; 414 and 431 absurdly long heads.
        assert answer.status_code in declared | {400, 404, 405, 414, 431}, (case.path, answer.status_code, answer.text)

    ask()
    return count


def test_an_operation_that_nothing_is_asked_of_is_told(server, monkeypatch):
    """It was passed over without a word: one whose requests could not be made looked like one without parameters."""
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install schemathesis")
    made = schemathesis.schemas.APIOperation.as_strategy

    def fails(operation, *given, **more):
        if operation.path == "/v1/reload":
            raise schemathesis.errors.SchemathesisError("no requests can be made of it")
        return made(operation, *given, **more)

    monkeypatch.setattr(schemathesis.schemas.APIOperation, "as_strategy", fails)
    with pytest.raises(AssertionError, match=r"POST /v1/reload: nothing"):
        run_cases(server, 20)


@pytest.mark.slow
def test_a_few_hundred_requests_of_its_description(server):
    seen = run_cases(server, 300)
    assert 200 in seen
    assert server.client.get("/readyz").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_requests_of_its_description(server):
    seen = run_cases(server, 10_000)
    assert sum(seen.values()) >= 10_000, seen
    assert seen[200] > 500
    print(f"answers by status: {dict(sorted(seen.items()))}")
    assert server.client.get("/readyz").status_code == 200
