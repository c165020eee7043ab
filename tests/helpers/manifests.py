"""The manifests of deploy/, and what Kubernetes would make of them: the environment of each pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SERVING = DEPLOY / "serving"


@dataclass(frozen=True)
class Pod:
    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """Without what comes from a Secret."""
    secrets: dict[str, str]
    """Variable to `secret/key`."""


def documents(name: str, folder: Path = KUBERNETES) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((folder / name).read_text()))


def pods_of(workload: dict[str, Any]) -> Iterator[Pod]:
    """The pods of a StatefulSet or an indexed Job, as they are started."""
    spec, name = workload["spec"], workload["metadata"]["name"]
    for index in range(spec["replicas"] if workload["kind"] == "StatefulSet" else spec["completions"]):
        fields = {
            "metadata.name": f"{name}-{index}",
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        }
        [container] = spec["template"]["spec"]["containers"]
        environment: dict[str, str] = {}
        secrets: dict[str, str] = {}
        for entry in container["env"]:
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                secrets[entry["name"]] = f"{source['secretKeyRef']['name']}/{source['secretKeyRef']['key']}"
            elif "fieldRef" in source:
                environment[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:  # of those that stand before it in the list
                value = re.sub(r"\$\((\w+)\)", lambda found, known=environment: known[found[1]], entry["value"])
                environment[entry["name"]] = value
        yield Pod(fields["metadata.name"], (*container["command"], *container["args"]), environment, secrets)
