"""`sparsefleet ray-metrics`: training figures on the Metrics page of Ray's dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparsefleet.cli.console import errors_to_exit, say
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.launch.on_ray.options import check_ray


@errors_to_exit
def ray_metrics(
    temp_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder that Ray's head keeps its files in, as ray start --temp-dir has it; /tmp/ray by default."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Whoever reaches it may look: there is no password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where Ray's dashboard looks for Grafana; 0 takes a free one.")] = 3000,
    prometheus_port: Annotated[
        int, typer.Option(help="Where Ray's dashboard asks whether Prometheus is there; 0 takes a free one.")
    ] = 9090,
    prometheus: Annotated[
        bool, typer.Option("--prometheus/--no-prometheus", help="Answer there; no: a Prometheus runs already.")
    ] = True,
) -> None:
    """Show training figures on the Metrics page of Ray's dashboard, without Prometheus and Grafana.

    Run it on the head's host, beside the cluster. It asks Ray's endpoints every
    5 seconds, keeps the last hour in memory, and answers where Ray's dashboard
    looks for Grafana (http://localhost:3000, or RAY_GRAFANA_HOST of the head):
    then the Metrics page shows charts of the jobs that were started with
    --on ray. SIGTERM or Ctrl-C ends it.

    Ray's own panels are not shown: they need Prometheus and Grafana. Where a
    Grafana runs, this command is not needed: import
    deploy/grafana/training.json there.
    """
    check_ray("ray-metrics")
    try:
        from sparsefleet.launch.on_ray.metrics_page.endpoints import usual_folder
        from sparsefleet.launch.on_ray.metrics_page.run import PageConfig, serve_page
    except ImportError as error:
        raise SparseFleetError(
            f"ray-metrics needs more packages of Ray's ({error}): pip install 'sparsefleet[ray]'"
        ) from error

    def listening(port: int, prometheus_port: int | None) -> None:
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(json.dumps({"url": f"{url}/d/sparsefleet/", "prometheus_port": prometheus_port}), flush=True)
        say("Ray's dashboard shows training figures under Metrics; SIGTERM or Ctrl-C ends it", markup=False)

    config = PageConfig(temp_dir or usual_folder(), host, port, prometheus_port if prometheus else None)
    serve_page(config, lambda text: say(text, markup=False), listening)
