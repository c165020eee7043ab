#!/bin/sh
# loc_cluster.sh of the CTR documents: 2 trainers and 2 servers on this host, each started by hand.
#
#   sh loc_cluster.sh [options of distribute_train.py]
#
# Logs in ./log. FIRST_PORT is the first server's port.
set -eu
python=${PYTHON:-python}
port=${FIRST_PORT:-36011}
export PADDLE_TRAINERS_NUM=2 PYTHONUNBUFFERED=1
export PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:$port,127.0.0.1:$((port + 1))"
mkdir -p log

pids=""
trap 'for pid in $pids; do kill "$pid" 2>/dev/null || true; done' EXIT
trap 'exit 130' INT TERM
for i in 0 1; do
    TRAINING_ROLE=PSERVER POD_IP=127.0.0.1 PADDLE_PORT=$((port + i)) \
        "$python" distribute_train.py "$@" >"log/pserver.$i.log" 2>&1 &
    pids="$pids $!"
done
for i in 0 1; do
    TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=$i "$python" distribute_train.py "$@" >"log/trainer.$i.log" 2>&1 &
    pids="$pids $!"
done

failed=0
for pid in $pids; do
    wait "$pid" || failed=1
done
if [ "$failed" -ne 0 ]; then
    echo "a process failed; the ends of the logs:" >&2
    tail -n 3 log/*.log >&2
    exit 1
fi
tail -n 2 log/trainer.0.log
