"""What the bookkeeping of a sync round costs a server: processor time a round, with nothing to add up.

    python benchmarks/sync_rounds.py [--rounds 200]

Trainers are threads of this process that contribute empty parts. Measured on two cores that others used too (Python
3.11), best of three, in ms of processor a round; before, every contribution woke all who waited, and each of them
counted anew who was missing:

    trainers   before     now
           8     0.38    0.19
          32     3.9     0.74
         100    63       2.4
"""

from __future__ import annotations

import argparse
import threading
import time

from sparsefleet.server import ServerConfig
from sparsefleet.server.ledger import Account, Step
from sparsefleet.server.members import Registration
from sparsefleet.server.state import ServerState


def milliseconds_a_round(trainers: int, rounds: int) -> float:
    state = ServerState(ServerConfig(workers=trainers, endpoints=("a:1",)))
    accounts = []
    for worker in range(trainers):
        state.sessions.register(f"life {worker}", Registration(worker, trainers, ("a:1",), 0, "benchmark"))
        accounts.append(state.account(worker, f"life {worker}", 0))

    def contribute(account: Account) -> None:
        for number in range(1, rounds + 1):
            state.rounds.contribute(Step(account, number, 1), [], lambda reason: None)

    threads = [threading.Thread(target=contribute, args=(account,)) for account in accounts]
    begun = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1e3 * (time.process_time() - begun) / rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    chosen = parser.parse_args()
    print("  trainers   ms of processor a round, best of three")
    for trainers in (8, 32, 100):
        best = min(milliseconds_a_round(trainers, chosen.rounds) for _ in range(3))
        print(f"  {trainers:8d}   {best:6.2f}")


if __name__ == "__main__":
    main()
