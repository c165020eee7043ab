"""The server's own description: it is a right one, it is the model's, and whatever it allows gives no 500."""

import json
import re

import pytest
from http_server import serving
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

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


def run_cases(server, count):
    """Requests that the description allows, and some that it does not: each is answered as it says.

    Routes without a body have few different requests; predictions, which come last, make up for them.
    """
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install schemathesis")
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen = {}
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= ROUTES - {"/openapi.json"}  # it leaves its own source out
    modes = list(schemathesis.GenerationMode)
    for operation in sorted(operations, key=lambda one: one.path == "/v1/predict"):
        declared = {int(code) for code in operation.definition.raw["responses"]}
        for number, mode in enumerate(modes):
            share = count // (len(modes) * len(operations))
            if operation.path == "/v1/predict":
                share = 1 + (count - sum(seen.values())) // (len(modes) - number)
            try:
                strategy = operation.as_strategy(generation_mode=mode)
                _ask(strategy, declared, max(1, share), seen)
            except (Unsatisfiable, schemathesis.errors.SchemathesisError):
                continue  # a route without parameters has no wrong ones
    return seen


def _ask(strategy, declared, examples, seen):
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
        answer = case.call(timeout=30)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        # 404 and 405 answer requests that are not the operation's; 414 and 431 absurdly long heads.
        assert answer.status_code in declared | {400, 404, 405, 414, 431}, (case.path, answer.status_code, answer.text)

    ask()


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
