#!/usr/bin/env bash
# A cluster on this host: 2 servers and 2 trainers, each started by hand with the variables that a scheduler would set.
#
#   bash loc_cluster.sh DATA [options of train.py]      DATA holds train/ and test/ (`sparsefleet data synth` makes some)
#
# Logs: ./log/pserver.N.log and ./log/trainer.N.log; the model: ./model. Other numbers: SERVERS=1 WORKERS=3 bash …
# FIRST_PORT is the first server's port; PYTHON is the Python to use.
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: bash loc_cluster.sh DATA [options of train.py]" >&2
    exit 2
fi
data=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python}
servers=${SERVERS:-2}
workers=${WORKERS:-2}
first_port=${FIRST_PORT:-36011}

list=""
for ((i = 0; i < servers; i++)); do
    list+="${list:+,}127.0.0.1:$((first_port + i))"
done
export PADDLE_TRAINERS_NUM=$workers PADDLE_PSERVERS_IP_PORT_LIST=$list PYTHONUNBUFFERED=1
command=("$python" "$here/train.py" --data "$data/train" --test-data "$data/test" --save ./model "$@")
mkdir -p log

pids=()
end_all() {
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
}
trap end_all EXIT
trap 'exit 130' INT TERM

for ((i = 0; i < servers; i++)); do
    TRAINING_ROLE=PSERVER POD_IP=127.0.0.1 PADDLE_PORT=$((first_port + i)) \
        "${command[@]}" >"log/pserver.$i.log" 2>&1 &
    pids+=($!)
done
trainers=()
for ((i = 0; i < workers; i++)); do
    TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=$i "${command[@]}" >"log/trainer.$i.log" 2>&1 &
    pids+=($!)
    trainers+=($!)
done
echo "started $servers servers ($list) and $workers trainers; logs in ./log"

# Trainers wait long for a server that does not come up, and cannot go on without one: its end is theirs.
running() { kill -0 "$1" 2>/dev/null; }
any_trainer_runs() {
    for pid in "${trainers[@]}"; do
        if running "$pid"; then return 0; fi
    done
    return 1
}
ended=() incomplete=0
while any_trainer_runs; do
    for ((i = 0; i < servers; i++)); do
        if [ -z "${ended[i]:-}" ] && ! running "${pids[i]}"; then
            ended[i]=1
            status=0
            wait "${pids[i]}" || status=$?
            if ((status == 3)); then # its trainers have stopped; one of them before its work was done
                incomplete=1
            elif ((status)); then
                echo "server $i failed; the end of log/pserver.$i.log:" >&2
                tail -n 5 "log/pserver.$i.log" >&2
                sleep 3 # for trainers to write down what they know of it
                exit 1
            fi
        fi
    done
    sleep 0.2
done

failed=0
for ((i = 0; i < workers; i++)); do
    if ! wait "${trainers[i]}"; then
        failed=1
        echo "trainer $i failed; the end of log/trainer.$i.log:" >&2
        tail -n 5 "log/trainer.$i.log" >&2
    fi
done
if ((failed)); then
    exit 1
fi
# Servers end by themselves once all trainers have.
for ((i = 0; i < servers; i++)); do
    [ -n "${ended[i]:-}" ] || wait "${pids[i]}" || incomplete=1
done
if ((incomplete)); then
    echo "not all went well; the end of log/pserver.0.log:" >&2
    tail -n 5 log/pserver.0.log >&2
    exit 1
fi
echo "trainer 0: $(tail -n 1 log/trainer.0.log)"
echo "model in ./model"
