"""A server that loses answers: after applying a message it cuts the stream.

After the messages numbered in LOSE_AFTER, once for each; before that it waits for LOSE_DELAY seconds, so that more
calls can get under way. And after a share of LOSE_SHARE of all, drawn at random.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from sparsefleet.server.__main__ import read_arguments
from sparsefleet.server.exchange import CutOff
from sparsefleet.server.process import run_server

lost = {int(number) for number in os.environ.get("LOSE_AFTER", "").split(",") if number}
share, draws = float(os.environ.get("LOSE_SHARE", "0")), random.Random(1)


def lose(operation: str, number: int) -> None:
    if number in lost:
        lost.remove(number)
        time.sleep(float(os.environ.get("LOSE_DELAY", "0")))  # what comes meanwhile is lost with it
        raise CutOff
    if draws.random() < share:
        raise CutOff


run_server(read_arguments(sys.argv[1:]), lambda endpoint: print(json.dumps({"endpoint": endpoint}), flush=True), lose)
