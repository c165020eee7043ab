"""The files of deploy/serving fit the server: its options, routes, signals and wheels."""

import re
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from sparsefleet.cli.app import app
from sparsefleet.core.tokens import PREDICT_TOKEN
from sparsefleet.serving.config import TOKEN, ServeConfig

yaml = pytest.importorskip("yaml", reason="no PyYAML: manifests are not checked")
FOLDER = Path(__file__).parents[2] / "deploy" / "serving"


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.fixture(scope="module")
def pod():
    (deployment,) = documents("deployment.yaml")
    assert (deployment["kind"], deployment["apiVersion"]) == ("Deployment", "apps/v1")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= (
        deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    return deployment["spec"]["template"]["spec"]


def test_probes_ask_what_they_are_for(pod):
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] in ports


def test_arguments_are_the_servers_and_the_end_has_time(pod):
    (container,) = pod["containers"]
    command = typer.main.get_command(app).commands["serve"]
    known = {option for parameter in command.params for option in parameter.opts}
    given = dict(re.fullmatch(r"(--[a-z-]+)=(.*)", text).groups() for text in container["args"][1:])
    assert given.keys() <= known
    names = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    types = {field: type(value) for field, value in vars(ServeConfig("b")).items()} | {"threads": int}
    config = ServeConfig("b", **{name: types[name](value) for name, value in names.items()})
    assert pod["terminationGracePeriodSeconds"] > config.linger + config.drain_timeout
    assert {PREDICT_TOKEN, TOKEN, "SPARSEFLEET_CACHE"} <= {variable["name"] for variable in container["env"]}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["securityContext"]["runAsNonRoot"]


def test_metrics_are_scraped_with_the_token_that_the_pods_ask_for(pod):
    """Annotations cannot give one: each scrape would be a 401, unless there is no token."""
    (deployment,) = documents("deployment.yaml")
    annotations = deployment["spec"]["template"]["metadata"].get("annotations", {})
    (container,) = pod["containers"]
    secrets = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    scraped = [name for name in annotations if name.startswith("prometheus.io/")]
    assert not (scraped and PREDICT_TOKEN in secrets), f"{scraped} and {PREDICT_TOKEN}"
    ((job,),) = yaml.safe_load((FOLDER.parent / "prometheus" / "serving.yaml").read_text()).values()
    assert job["authorization"]["type"] == "Bearer"
    secret = secrets[PREDICT_TOKEN]
    assert job["authorization"]["credentials_file"].endswith(f"/{secret['name']}/{secret['key']}")
    assert job["metrics_path"] == "/metrics"
    (pods,) = job["kubernetes_sd_configs"]
    assert pods["role"] == "pod"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert [one["label"] for one in pods["selectors"]] == [f"{name}={value}" for name, value in labels.items()]
    kept = {rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"}
    assert kept == {"http"} <= {port["name"] for port in container["ports"]}


def test_the_service_finds_its_pods(pod):
    service, budget, scaler = documents("service.yaml")
    (deployment,) = documents("deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == budget["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["targetPort"] in {port["name"] for port in pod["containers"][0]["ports"]}
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert budget["spec"]["minAvailable"] < scaler["spec"]["minReplicas"] == deployment["spec"]["replicas"]


def test_the_image_runs_the_small_distribution_as_nobody_special():
    lines = (FOLDER / "Dockerfile").read_text()
    assert "sparsefleet_serve-*.whl" in lines
    assert re.search(r"^ARG EXTRAS=$", lines, re.M)
    assert "${EXTRAS}" in lines, "for --grpc-port"
    assert re.search(r"^USER serve$", lines, re.M)
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", lines, re.M)[1]  # the exec form: a shell would swallow SIGTERM
    words = yaml.safe_load(entry)
    assert words[:2] == ["sparsefleet", "serve"]
    assert CliRunner().invoke(app, ["serve", "--help"]).exit_code == 0
