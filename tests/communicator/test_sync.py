"""Sync: the sum of all trainers' and threads' gradients is one step."""

from __future__ import annotations

import re

import pytest
from communicator_contract import CommunicatorContract, OnServers, Recorder, gradients, parameters_in, run_lanes, u64
from small_jobs import cluster, in_threads

from sparsefleet import optim
from sparsefleet.communicator import CommunicatorConfig, SyncCommunicator
from sparsefleet.core.errors import StoreError
from sparsefleet.store import LocalStore


class TestSync(CommunicatorContract):
    kind = SyncCommunicator


class TestSyncOnServers(OnServers, CommunicatorContract):
    kind = SyncCommunicator


@pytest.mark.parametrize("rule", [optim.SGD(1.0), optim.Adam(1.0)])
def test_threads_are_summed_whatever_the_rule(rule):
    store = LocalStore()
    communicator = SyncCommunicator(store)
    communicator.start(parameters_in(store, rule))
    recorder = Recorder(store)
    run_lanes(communicator.begin_epoch(0, 3), lambda index, lane: lane.push(gradients(1.0 + index, 7)))
    assert recorder.values == [6.0]


def test_a_trainer_whose_thread_failed_is_lost_not_left_out():
    """As if its rows had ended, the others would go on and nobody would know that rows are missing."""
    with cluster(2, lost_trainer="error") as fleet:
        for server in fleet.servers:  # what the servers call lost must come soon, what the clients do must not
            object.__setattr__(server.config, "timeout", 2.0)
        stores = [fleet.store(worker, 2, heartbeat=0.2) for worker in range(2)]
        communicators = [SyncCommunicator(store) for store in stores]

        def work(worker):
            communicator, store = communicators[worker], stores[worker]
            communicator.start(parameters_in(store))

            def steps(index, lane):
                for step in range(6):
                    if (worker, step) == (1, 3):
                        raise ValueError("a bad row")
                    lane.pull("ads", gradients(0.0, 1).sparse["ads"].keys).wait()
                    lane.push(gradients(-1.0, 1))

            (error,) = run_lanes(communicator.begin_epoch(0, 1), steps)
            if worker == 1:
                store.crew.give_up(error)
            return error

        errors = {}
        in_threads([lambda w=w: errors.update({w: work(w)}) for w in range(2)])
        assert isinstance(errors[1], ValueError)
        assert isinstance(errors[0], StoreError)
        assert re.search(r"worker 1 \(process .*\) failed: a bad row", str(errors[0]))


@pytest.mark.parametrize("clip_norm", [None, 1000.0])
def test_rows_that_are_expected_come_with_the_answer_to_the_push(clip_norm):
    """As they are after the round, so that no pull is needed; what was not expected is pulled."""
    with cluster(2) as fleet:
        stores = [fleet.store(worker, 2) for worker in range(2)]
        pulls = [count_pulls(store) for store in stores]
        found = {0: [], 1: []}

        def work(worker):
            store = stores[worker]
            communicator = SyncCommunicator(store, CommunicatorConfig(clip_norm=clip_norm), store.crew)
            communicator.start(parameters_in(store))

            def steps(index, lane):
                asked = {"ads": u64(index + 1, 50)}
                for step in range(8):
                    found[worker].append(lane.pull_all(asked).wait()["ads"][:, 0].tolist())
                    asked = {"ads": u64(index + 1, 50)}
                    if step == 4:
                        lane.expect({"ads": u64(77)})  # and then another batch comes
                    elif step != 5:
                        lane.expect(asked)
                    lane.push(gradients(-1.0, index + 1))

            assert run_lanes(communicator.begin_epoch(0, 2), steps) == [None, None]
            communicator.flush()

        in_threads([lambda w=w: work(w) for w in range(2)])
        assert [len(one) for one in pulls] == [6, 6]  # of each thread: the first, that after step 4, that after step 5
        for rows in found.values():  # of two threads, which both see what both trainers have pushed
            assert sorted(rows) == sorted([[2.0 * step, 0.0] for step in range(8)] * 2)


def count_pulls(store):
    made, pull_all = [], store.pull_all

    def counted(asked):
        made.append(asked)
        return pull_all(asked)

    store.pull_all = counted
    return made
