"""The manifests of deploy/: they fit Kubernetes' schemas, and the variables that they set make one job."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer.main
from manifests import DEPLOY, KUBERNETES, SERVING, documents, pods_of

from sparsefleet.cli.app import app
from sparsefleet.fleet.roles import Role

SERVICE, SERVERS = documents("servers.yaml")
[TRAINERS] = documents("trainers.yaml")
[RAY_JOB] = documents("rayjob.yaml")
SERVED = [document for name in ("deployment.yaml", "service.yaml") for document in documents(name, SERVING)]
RAY_GROUPS = [
    RAY_JOB["spec"]["rayClusterSpec"]["headGroupSpec"],
    *RAY_JOB["spec"]["rayClusterSpec"]["workerGroupSpecs"],
]


def test_every_manifest_is_looked_at() -> None:
    assert sorted(path.name for path in KUBERNETES.glob("*.yaml")) == ["rayjob.yaml", "servers.yaml", "trainers.yaml"]
    assert sorted(path.name for path in SERVING.glob("*.y*ml")) == ["deployment.yaml", "service.yaml"]


@pytest.mark.parametrize("document", [SERVICE, SERVERS, TRAINERS, *SERVED], ids=lambda document: document["kind"])
def test_the_shape_is_kubernetes_own(document: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (extra: test) is not installed")
    schemas.validate(document, "1.30", strict=True)


@pytest.mark.parametrize("group", RAY_GROUPS, ids=["head", "workers"])
def test_the_pods_of_a_ray_job_have_the_shape_of_pods(group: dict[str, Any]) -> None:
    """KubeRay's own schema is on no package index; its pod templates are Kubernetes' own."""
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (extra: test) is not installed")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
    schemas.validate(pod, "1.30", strict=True)


def test_a_ray_job_has_the_fields_of_one() -> None:
    """As KubeRay's reference lists them (ray.io/v1)."""
    known = {
        "entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"
    }  # fmt: skip
    assert (RAY_JOB["apiVersion"], RAY_JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert set(RAY_JOB["spec"]) == known
    assert RAY_JOB["spec"]["backoffLimit"] == 0
    assert set(RAY_JOB["spec"]["rayClusterSpec"]) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    for group in RAY_GROUPS:
        more = {"groupName", "replicas", "minReplicas", "maxReplicas"} if group is not RAY_GROUPS[0] else set()
        assert set(group) == {"rayStartParams", "template", *more}
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_a_ray_job_asks_for_the_ray_that_the_image_has_and_that_tests_run_with() -> None:
    """The image is built with constraints.txt; KubeRay starts the nodes by what the manifest says."""
    pinned = re.search(r"^ray==(\S+)$", (DEPLOY.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert RAY_JOB["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]
    assert "-c /tmp/constraints.txt" in (DEPLOY / "Dockerfile").read_text()
    with contextlib.suppress(metadata.PackageNotFoundError):
        assert metadata.version("ray") == pinned[1], "install with -c constraints.txt, or change both"


def test_the_variables_make_every_role_of_one_job() -> None:
    roles = [Role.from_environment(pod.environment) for workload in (SERVERS, TRAINERS) for pod in pods_of(workload)]
    endpoints = ("ctr-servers-0.ctr-servers:36011", "ctr-servers-1.ctr-servers:36011")
    assert roles == [
        *(Role.server(index, 2, endpoints) for index in range(2)),
        *(Role.worker(index, 2, endpoints) for index in range(2)),
    ]


def test_names_of_servers_are_those_that_the_service_gives() -> None:
    assert SERVERS["spec"]["serviceName"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["selector"].items() <= SERVERS["spec"]["template"]["metadata"]["labels"].items()
    assert SERVICE["spec"]["publishNotReadyAddresses"] is True
    for pod in pods_of(SERVERS):
        assert pod.environment["POD_IP"] == f"{pod.name}.{SERVICE['metadata']['name']}"


def test_servers_and_trainers_are_given_the_same_options() -> None:
    commands = {pod.command for workload in (SERVERS, TRAINERS) for pod in pods_of(workload)}
    assert len(commands) == 1


def test_roles_wait_longer_for_each_other_than_a_node_takes_to_come() -> None:
    """As a pod without a node and an image waits; the Job does not try again."""
    assert TRAINERS["spec"]["backoffLimit"] == 0
    commands = {pod.command for workload in (SERVERS, TRAINERS) for pod in pods_of(workload)}
    for command in commands:
        [waits] = [word.partition("=")[2] for word in command if word.startswith("--connect-timeout=")]
        assert float(waits) >= 1800


def test_the_token_comes_from_one_secret_and_stands_nowhere() -> None:
    found = {secret for workload in (SERVERS, TRAINERS) for pod in pods_of(workload) for secret in pod.secrets.items()}
    [head] = RAY_GROUPS[0]["template"]["spec"]["containers"]
    found |= {(entry["name"], "{name}/{key}".format(**entry["valueFrom"]["secretKeyRef"])) for entry in head["env"]}
    assert found == {("SPARSEFLEET_TOKEN", "ctr-token/token")}


def test_commands_are_ones_that_sparsefleet_knows() -> None:
    commands = [list(next(pods_of(SERVERS)).command), shlex.split(RAY_JOB["spec"]["entrypoint"])]
    command = typer.main.get_command(app)
    for program, *arguments in commands:
        assert program == "sparsefleet"
        with command.make_context(program, arguments[:1], resilient_parsing=True) as parent:
            train = command.get_command(parent, arguments[0])  # type: ignore[attr-defined]
            assert train is not None
            train.make_context(arguments[0], arguments[1:], parent=parent)


def test_the_image_is_built_of_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)]
    sources = {source for line in copied for source in line}
    assert {"pyproject.toml", "CMakeLists.txt", "native", "src", "constraints.txt"} <= sources
    assert all((DEPLOY.parent / source).exists() for source in sources)
    assert re.search(r"^USER 1000$", text, re.MULTILINE)  # as the manifests' runAsUser
    assert text.count("\nFROM ") == 2


WAITS = re.compile(r"^(?:#   )?(until kubectl get job .*)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (["", "Complete"], "Complete"),
        (["", "SuccessCriteriaMet", "SuccessCriteriaMet Complete"], "Complete"),
        (["", "FailureTarget", "FailureTarget Failed"], "Failed"),
    ],
)
def test_who_waits_for_the_job_hears_of_both_ends(tmp_path: Path, conditions: list[str], said: str) -> None:
    """`kubectl wait --for=condition=complete` would go on waiting for a Job that has failed."""
    [line] = {
        found[1]
        for page in (KUBERNETES / "trainers.yaml", DEPLOY.parent / "docs" / "clusters.md")
        for found in WAITS.finditer(page.read_text())
    }
    (tmp_path / "told").write_text("".join(f"{text}\n" for text in conditions))
    kubectl = '#!/bin/sh\n[ "$3 $5" = "ctr-trainers jsonpath={.status.conditions[*].type}" ] || exit 1\n'
    kubectl += f"head -n 1 {tmp_path}/told\nsed -i 1d {tmp_path}/told\n"
    for name, text in (("kubectl", kubectl), ("sleep", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], env={"PATH": path}, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == f"{said}\n"
    assert (tmp_path / "told").read_text() == ""
