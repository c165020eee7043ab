# `make train` and `make test` do all the set-up in a virtual environment of their own.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml constraints.txt $(shell find native -type f 2>/dev/null)
DATA   ?= runs/quickstart/data
MODEL  ?= runs/quickstart/model
LARGE  ?= runs/large/data
MODE   ?= async
JOBS   ?= 1

# Each one is run, whichever fail (scripts/all_of.sh).
LINT := "$(BIN)/ruff check ." "$(BIN)/ruff format --check ." "$(BIN)/mypy" "$(BIN)/lint-imports" \
	"$(BIN)/clang-format --dry-run --Werror $(shell find native -name '*.cpp' -o -name '*.h')"

.PHONY: help setup train train-distributed train-chaos train-elastic test test-all test-chaos test-levels test-native lint redis bench wheel native clean

help:
	@echo "make train               set up, generate Criteo-like data, train, evaluate, say where the model is"
	@echo "make train-distributed   the same on 2 servers and 2 trainers of this host (MODE=async)"
	@echo "make train-chaos         the same while its processes are killed, beside an undisturbed run, with a picture"
	@echo "make train-elastic       two servers, and trainers that come and go: from one to four to two, with a picture"
	@echo "make test                set up, lint, type-check, run the tests"
	@echo "make test-all            the tests that take longer too"
	@echo "make test-chaos          jobs under a killer, 50 rounds of each mode: every sample is trained once (JOBS=1 at a time)"
	@echo "make test-levels         tests of kernels, networks and training on every processor level that this machine has"
	@echo "make test-native         tests of kernels on a module with address and undefined-behaviour sanitizers"
	@echo "make lint                style, types, import layers and the format of C++; all of them, whichever fail"
	@echo "make redis               install redis-server for the tests that need one, where that is allowed"
	@echo "make bench               print the table of speed ratios (benchmarks/local.py)"
	@echo "make wheel               wheels for Linux x86-64 into dist/, for all Pythons from 3.11 on"
	@echo "make native              build the native module in place, for work on the sources"
	@echo "make clean               remove the environment and everything built"

# An installed module is looked for where it stood: where one was moved or removed since, all is set up again.
MOVED := $(shell [ ! -f $(VENV)/.sources ] || xargs ls <$(VENV)/.sources >/dev/null 2>&1 || rm -f $(VENV)/.ready)

$(VENV)/.ready: $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/set_up.py
	@find src -name '*.py' >$(VENV)/.sources
	@touch $@

setup: $(VENV)/.ready

$(DATA)/schema.json: | setup
	$(BIN)/sparsefleet data synth --rows 400000 --test-rows 40000 --parts 4 --out $(DATA) --seed 1

train: setup $(DATA)/schema.json
	$(BIN)/sparsefleet train --data $(DATA)/train --test-data $(DATA)/test --threads 2 --save $(MODEL)

train-distributed: setup $(DATA)/schema.json
	$(BIN)/sparsefleet train --servers 2 --workers 2 --mode $(MODE) --data $(DATA)/train --test-data $(DATA)/test --save $(MODEL)-$(MODE) --log-dir runs/quickstart/log

$(LARGE)/schema.json: | setup
	$(BIN)/sparsefleet data synth --rows 3000000 --test-rows 40000 --parts 8 --out $(LARGE) --seed 1

train-chaos: setup $(LARGE)/schema.json
	$(BIN)/python scripts/train_chaos.py --data $(LARGE) --out runs/chaos --mode $(MODE)

train-elastic: setup $(LARGE)/schema.json
	$(BIN)/python scripts/train_elastic.py --data $(LARGE) --out runs/elastic --mode $(MODE)

lint: setup
	@sh scripts/all_of.sh $(LINT)

redis:
	@sh scripts/redis_for_tests.sh

test: setup redis
	@sh scripts/all_of.sh $(LINT) \
		"OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n 2 --dist loadgroup tests"

test-all: setup redis
	@sh scripts/all_of.sh $(LINT) "$(BIN)/python -m pytest tests"

test-chaos: setup
	$(BIN)/python scripts/test_chaos.py --jobs $(JOBS)

test-levels: setup
	$(BIN)/python scripts/test_levels.py

test-native: setup
	$(BIN)/python scripts/test_native.py

bench: setup
	$(BIN)/python benchmarks/local.py

wheel:
	$(PYTHON) scripts/wheel.py

native:
	cmake -S . -B build/inplace -DPython_EXECUTABLE=$$(command -v python) >/dev/null
	cmake --build build/inplace -j2
	cp build/inplace/_native*.so src/sparsefleet/kernels/

clean:
	rm -rf $(VENV) build dist runs src/sparsefleet/kernels/_native*.so
