# make demo, make test: on a fresh machine with Python 3.11 or newer, nothing else is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PLUGINS := triton cuda rocm xpu cpu_amx
PACKAGES := core $(addprefix plugins/,$(PLUGINS))

.PHONY: setup demo test check bench docs clean

# torch comes first, pinned by constraints.txt, so that no other package pulls a build of its own.
$(BIN)/.core: constraints.txt core/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ./core gguf accelerate
	touch $@

$(BIN)/.dev: $(BIN)/.core requirements-dev.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	$(BIN)/python -m pip install --quiet -c constraints.txt -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt $(foreach p,$(PLUGINS),-e ./plugins/$(p))
	touch $@

setup: $(BIN)/.dev

demo: $(BIN)/.core
	$(BIN)/python -m demo

# One thread a process, as two run side by side; and compiled code is kept for the next of them.
test: export OMP_NUM_THREADS = 1
test: export PYTHONDONTWRITEBYTECODE =
test: $(BIN)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(BIN)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(BIN)/.dev
	$(BIN)/python -m benchmarks

docs: $(BIN)/.dev
	$(BIN)/python scripts/generate_tables.py

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
