"""deploy/grafana/: a dashboard that Grafana can read, of metrics that a job on Ray exports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from manifests import DEPLOY

from sparsefleet.launch.on_ray.metrics import OF_TRAINERS
from sparsefleet.launch.on_ray.series import EXPORTED_PREFIX, LABELS, SERIES

BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "training.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
OURS = {EXPORTED_PREFIX + name for name in SERIES}
SERIES_OF = re.compile(r"\w*sparsefleet_\w+")
VARIABLES = {one["name"]: one for one in BOARD["templating"]["list"]}


def test_the_shape_is_a_dashboards() -> None:
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= BOARD.keys()
    assert "id" not in BOARD, "Grafana gives a dashboard its number when it is imported"
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
    tiles = [(p["gridPos"]["x"] + x, p["gridPos"]["y"] + y) for p in PANELS for x in range(12) for y in range(8)]
    assert len(set(tiles)) == len(tiles), "panels lie over each other"
    assert VARIABLES["datasource"]["type"] == "datasource"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_asks_for_what_the_code_exports(panel: dict[str, Any]) -> None:
    [target] = panel["targets"]
    assert set(SERIES_OF.findall(target["expr"])) <= OURS
    assert SERIES_OF.findall(target["expr"]), "it asks for nothing of ours"
    by = re.search(r" by \(([^)]*)\)", target["expr"])
    assert by is not None, "Ray's own labels (WorkerId, SessionName, …) would stand in every name"
    asked = [label.strip() for label in by[1].split(",")]
    assert set(asked) <= set(LABELS)
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(asked)
    assert set(re.findall(r"\$(\w+)", target["expr"])) <= VARIABLES.keys()


def test_a_job_is_chosen_by_a_label_that_there_is() -> None:
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES["job_name"]["query"]["query"])
    assert asked is not None
    assert asked[1] in OURS
    assert asked[2] in LABELS


def test_every_series_is_drawn_by_job_and_role_as_our_own_page_does() -> None:
    drawn = {}
    for panel in PANELS:
        [target] = panel["targets"]
        if f" by ({', '.join(LABELS)}) " in target["expr"]:
            [name] = SERIES_OF.findall(target["expr"])
            defaults = panel["fieldConfig"]["defaults"]
            drawn[name] = (panel["title"], defaults["unit"], defaults.get("min") == 0, panel["description"])
    assert drawn == {
        EXPORTED_PREFIX + name: (one.title, one.unit, one.from_zero, one.text) for name, one in SERIES.items()
    }


def test_every_series_is_documented() -> None:
    assert set(re.findall(r"ray_sparsefleet_\w+", (DEPLOY.parent / "docs" / "clusters.md").read_text())) == OURS


def test_every_metric_is_described() -> None:
    assert OF_TRAINERS.keys() <= SERIES.keys()
    assert "job" not in LABELS, "Prometheus has a label of that name, and would rename ours"
