#!/bin/sh
# Criteo's data in ./train_data and ./test_data.
#
#   sh get_data.sh              downloads 3.8 GB; goes on where an earlier attempt stopped
#   sh get_data.sh 20000        makes up so many rows of the same shape instead, to try the scripts on
#
# URL is another address of the archive; SPARSEFLEET the command to use.
set -eu
url=${URL:-https://fleet.bj.bcebos.com/ctr_data.tar.gz}
sparsefleet=${SPARSEFLEET:-sparsefleet}

if [ -e train_data ] || [ -e test_data ]; then
    echo "train_data or test_data is here already; move it away first" >&2
    exit 1
fi
if [ $# -gt 0 ]; then
    $sparsefleet data synth --rows "$1" --test-rows "$(($1 / 5))" --parts 4 --out made_up
    mv made_up/train train_data
    mv made_up/test test_data
    rm -r made_up
else
    $sparsefleet data download --url "$url" --out .
    mv raw_data train_data
    rm -f ctr_data.tar.gz
    echo "Complete data download."
fi
echo "Train data stored in ./train_data folder."
echo "Test data stored in ./test_data folder."
