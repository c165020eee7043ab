"""A server that loses answers: after applying the messages numbered in LOSE_AFTER it cuts the stream, once for each.

Before that it waits for LOSE_DELAY seconds, so that more calls can get under way.
"""

from __future__ import annotations

import json
import os
import sys
import time

from sparsefleet.server.__main__ import read_arguments
from sparsefleet.server.exchange import CutOff
from sparsefleet.server.process import run_server

lost = {int(number) for number in os.environ["LOSE_AFTER"].split(",")}


def lose(operation: str, number: int) -> None:
    if number in lost:
        lost.remove(number)
        time.sleep(float(os.environ.get("LOSE_DELAY", "0")))
        raise CutOff


run_server(read_arguments(sys.argv[1:]), lambda endpoint: print(json.dumps({"endpoint": endpoint}), flush=True), lose)
