"""What a job on Ray tells Prometheus: of each role its own figures, of those that are there."""

from __future__ import annotations

from sparsefleet.launch.on_ray.metrics import figures_of_server, figures_of_trainers

TRAINER = {
    "state": "present",
    "doing": "training",
    "epoch": 0,
    "step": 1500,
    "rows_per_s": 2000.5,
    "loss": 0.25,
    "auc": 0.75,
    "seconds_left": 75.0,
    "staleness": 3,
}
STATS = {
    "index": 1,
    "tables": {"a": {"rows": 10, "memory_bytes": 1000}, "b": {"rows": 5, "memory_bytes": 500}},
    "dense": {"net": {"values": 7, "memory_bytes": 28}},
}


def test_of_a_trainer_by_the_name_of_its_actor() -> None:
    assert list(figures_of_trainers({"workers": {"0": TRAINER}})) == [
        ("samples_per_second", "worker 0", 2000.5),
        ("loss", "worker 0", 0.25),
        ("auc", "worker 0", 0.75),
        ("step", "worker 0", 1500.0),
        ("epoch", "worker 0", 1.0),  # as logs and `sparsefleet status` count
        ("seconds_left", "worker 0", 75.0),
        ("staleness_steps", "worker 0", 3.0),
    ]


def test_what_is_not_known_is_left_out() -> None:
    early = {**TRAINER, "rows_per_s": None, "auc": None, "loss": None, "seconds_left": None}
    named = {name for name, _, _ in figures_of_trainers({"workers": {"0": early}})}
    assert named == {"step", "epoch", "staleness_steps"}


def test_a_trainer_that_is_not_there_any_more_tells_nothing() -> None:
    away = {str(index): {**TRAINER, "state": state} for index, state in enumerate(("lost", "gone", "dropped"))}
    there = {"workers": {**away, "7": {**TRAINER, "state": "resting"}}}
    assert {role for _, role, _ in figures_of_trainers(there)} == {"worker 7"}


def test_of_a_server_all_its_tables() -> None:
    assert list(figures_of_server(STATS)) == [("table_rows", "server 1", 15.0), ("memory_bytes", "server 1", 1528.0)]
