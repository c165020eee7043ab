"""Tasks that take long: asked about until they are done; threads that are done take the next one."""

from __future__ import annotations

import threading

from sparsefleet.core.errors import CheckpointError
from sparsefleet.server.long_tasks import LongTasks


def test_one_task_after_the_other_runs_in_the_same_thread():
    """Each new thread would get another of the C library's arenas, and what a write frees would be kept in all."""
    tasks, threads = LongTasks(lambda: 0), list[int]()

    def work():
        threads.append(threading.get_ident())
        return {}

    for number in range(20):
        while tasks.ask("a write", work, 5.0, key=str(number)) != {}:
            pass
        while not tasks._threads._idle:  # it has answered, and is about to be free
            pass
    assert len(set(threads)) == 1


def test_tasks_at_the_same_time_do_not_wait_for_each_other():
    tasks, go_on = LongTasks(lambda: 7), threading.Event()

    def slow():
        go_on.wait(10)
        return {"slow": True}

    assert tasks.ask("a write", slow, 0.0, key="slow") == {"busy": True, "rows": 7}
    assert tasks.ask("a table", lambda: {"quick": True}, 5.0, key="quick") == {"quick": True}
    go_on.set()
    assert tasks.ask("a write", slow, 5.0, key="slow") == {"slow": True}


def test_a_task_that_fails_answers_with_its_error():
    tasks = LongTasks(lambda: 0)

    def full():
        raise CheckpointError("no space left")

    assert tasks.ask("a write", full, 5.0, key="full") == {"error": "no space left", "kind": "checkpoint"}
