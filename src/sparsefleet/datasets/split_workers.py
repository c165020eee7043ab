"""Processes that do the items of a split, and this module as their program: `python -m … FOLDER TAG`.

A worker reads a line of JSON for each item, {"do": "split", "item": 3}, and answers with one. It ends with its input,
so none outlives whoever started it.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from sparsefleet.core.errors import DataError, SparseFleetError
from sparsefleet.data.files import file_size
from sparsefleet.datasets.split_job import Done, Piece, SplitJob, Worker

JOB = "job.json"
END_SECONDS = 10.0

Tell = Callable[[int, int], None]
"""Called with an item's number, and the bytes of it that are read."""


class SplitWorkers:
    """Does all items of a job; results come in the order of the items."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._count = folder, workers

    def each(self, job: SplitJob, what: str, tell: Tell) -> Iterator[tuple[int, Done]]:
        """(item, what was done), in order. An item that failed raises when its turn comes."""
        if self._count == 1:
            yield from self._alone(job, what, tell)
            return
        (self._folder / JOB).write_text(json.dumps(job.to_dict()))
        with _processes(self._folder, min(self._count, len(job.items)), what) as pool:
            yield from pool.each(what, len(job.items), tell, [_bytes_of(item) for item in job.items])

    def _alone(self, job: SplitJob, what: str, tell: Tell) -> Iterator[tuple[int, Done]]:
        worker = Worker(job, self._folder, f"{what}-0")
        for item in range(len(job.items)):
            done = worker.split(item, functools.partial(tell, item)) if what == "split" else worker.times(item)
            tell(item, _bytes_of(job.items[item]))
            yield item, done
        worker.finish()


def _bytes_of(item: Sequence[Piece]) -> int:
    return sum((file_size(file) if stop is None else stop) - start for file, start, stop in item)


@contextmanager
def _processes(folder: Path, count: int, what: str) -> Iterator[_Pool]:
    processes: list[subprocess.Popen[str]] = []
    try:
        for index in range(count):
            command = [sys.executable, "-m", "sparsefleet.datasets.split_workers", str(folder), f"{what}-{index}"]
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
        yield _Pool(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


class _Pool:
    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._said: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        for index, process in enumerate(processes):
            threading.Thread(target=self._listen, args=(index, process.stdout), daemon=True).start()

    def each(self, what: str, items: int, tell: Tell, sizes: list[int]) -> Iterator[tuple[int, Done]]:
        asked = done = 0
        waiting: dict[int, dict[str, Any]] = {}
        ahead = 4 * len(self._processes)  # of the item whose turn it is: files wait on the disk
        idle = list(range(len(self._processes)))
        while done < items:
            while idle and asked < items and asked < done + ahead:
                self._ask(idle.pop(), {"do": what, "item": asked})
                asked += 1
            if done not in waiting:
                index, answer = self._said.get()
                if answer is None:
                    raise SparseFleetError(f"a worker of data prepare ended with status {self._status(index)}")
                idle.append(index)
                waiting[answer["item"]] = answer
                tell(answer["item"], sizes[answer["item"]])
                continue
            answer = waiting.pop(done)
            if "error" in answer:
                raise DataError(answer["error"])
            yield done, Done(**answer["done"])
            done += 1
        for index in range(len(self._processes)):
            self._ask(index, {"do": "finish", "item": -1})
        for _ in self._processes:
            index, answer = self._said.get()
            if answer is None or "error" in answer:
                told = f"status {self._status(index)}" if answer is None else answer["error"]
                raise SparseFleetError(f"a worker of data prepare could not finish: {told}")

    def _ask(self, index: int, line: dict[str, Any]) -> None:
        pipe = self._processes[index].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(line) + "\n")
            pipe.flush()
        except OSError:
            pass  # it has ended, which its output tells

    def _status(self, index: int) -> int | None:
        try:
            return self._processes[index].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _listen(self, index: int, pipe: IO[str]) -> None:
        for line in pipe:
            self._said.put((index, json.loads(line)))
        self._said.put((index, None))


def main(folder: Path, tag: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it, and ends it
    # Answers go to the pipe that was standard output; whatever else prints must not get between them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(SplitJob.from_dict(json.loads((folder / JOB).read_text())), folder, tag)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any] = {"item": asked["item"]}
        try:
            if asked["do"] == "finish":
                worker.finish()
            else:
                answer["done"] = asdict(getattr(worker, asked["do"])(asked["item"]))
        except (SparseFleetError, OSError) as error:
            answer["error"] = str(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
