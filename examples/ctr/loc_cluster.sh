#!/bin/sh
# A cluster on this host: 2 servers and 2 trainers, each started by hand with the variables that a scheduler would set.
#
#   sh loc_cluster.sh DATA [options of train.py]      DATA holds train/ and test/ (`sparsefleet data synth` makes some)
#
# Logs: ./log/pserver.N.log and ./log/trainer.N.log; the model: ./model. Other numbers: SERVERS=1 WORKERS=3 sh …
# FIRST_PORT is the first server's port; PYTHON is the Python to use.
set -eu

if [ $# -lt 1 ]; then
    echo "usage: sh loc_cluster.sh DATA [options of train.py]" >&2
    exit 2
fi
data=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
servers=${SERVERS:-2}
workers=${WORKERS:-2}
first_port=${FIRST_PORT:-36011}

list=""
i=0
while [ "$i" -lt "$servers" ]; do
    list="$list${list:+,}127.0.0.1:$((first_port + i))"
    i=$((i + 1))
done
export PADDLE_TRAINERS_NUM="$workers" PADDLE_PSERVERS_IP_PORT_LIST="$list" PYTHONUNBUFFERED=1
set -- "$python" "$here/train.py" --data "$data/train" --test-data "$data/test" --save ./model "$@"
mkdir -p log

# POSIX sh has no arrays: process N of a role is in the variable server_N or trainer_N.
pids=""
get() { eval "echo \"\${$1:-}\""; }
end_all() {
    trap - EXIT INT TERM
    for pid in $pids; do
        kill "$pid" 2>/dev/null || true
    done
    wait
}
trap end_all EXIT
trap 'exit 130' INT TERM

i=0
while [ "$i" -lt "$servers" ]; do
    TRAINING_ROLE=PSERVER POD_IP=127.0.0.1 PADDLE_PORT=$((first_port + i)) "$@" >"log/pserver.$i.log" 2>&1 &
    eval "server_$i=$!"
    pids="$pids $!"
    i=$((i + 1))
done
i=0
while [ "$i" -lt "$workers" ]; do
    TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=$i "$@" >"log/trainer.$i.log" 2>&1 &
    eval "trainer_$i=$!"
    pids="$pids $!"
    i=$((i + 1))
done
echo "started $servers servers ($list) and $workers trainers; logs in ./log"

# Trainers wait long for a server that does not come up, and cannot go on without one: its end is theirs.
running() { kill -0 "$1" 2>/dev/null; }
any_trainer_runs() {
    n=0
    while [ "$n" -lt "$workers" ]; do
        if running "$(get "trainer_$n")"; then return 0; fi
        n=$((n + 1))
    done
    return 1
}
incomplete=0
while any_trainer_runs; do
    i=0
    while [ "$i" -lt "$servers" ]; do
        pid=$(get "server_$i")
        if [ -z "$(get "ended_$i")" ] && ! running "$pid"; then
            eval "ended_$i=1"
            status=0
            wait "$pid" || status=$?
            if [ "$status" -eq 3 ]; then # its trainers have stopped; one of them before its work was done
                incomplete=1
            elif [ "$status" -ne 0 ]; then
                echo "server $i failed; the end of log/pserver.$i.log:" >&2
                tail -n 5 "log/pserver.$i.log" >&2
                sleep 3 # for trainers to write down what they know of it
                exit 1
            fi
        fi
        i=$((i + 1))
    done
    sleep 0.2 2>/dev/null || sleep 1
done

failed=0
i=0
while [ "$i" -lt "$workers" ]; do
    if ! wait "$(get "trainer_$i")"; then
        failed=1
        echo "trainer $i failed; the end of log/trainer.$i.log:" >&2
        tail -n 5 "log/trainer.$i.log" >&2
    fi
    i=$((i + 1))
done
if [ "$failed" -ne 0 ]; then
    exit 1
fi
# Servers end by themselves once all trainers have.
i=0
while [ "$i" -lt "$servers" ]; do
    [ -n "$(get "ended_$i")" ] || wait "$(get "server_$i")" || incomplete=1
    i=$((i + 1))
done
if [ "$incomplete" -ne 0 ]; then
    echo "not all went well; the end of log/pserver.0.log:" >&2
    tail -n 5 log/pserver.0.log >&2
    exit 1
fi
echo "trainer 0: $(tail -n 1 log/trainer.0.log)"
echo "model in ./model"
