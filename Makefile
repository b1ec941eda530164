# make demo   from a bare clone: an environment, then a model trained, tested and plotted
# make test   from a bare clone: an environment, lint, types, import rules, tests
# make test-all   the same, and the tests that take minutes and gigabytes
# make bench  our layers against torch.nn and Hugging Face, in one run

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

DEMO ?= heedful-demo

.PHONY: demo test test-all lint types imports units bench clean

demo: $(INSTALLED)
	$(BIN)/heedful demo --out $(DEMO)

# mypy uses one process and pytest two: side by side they finish sooner.
test: $(INSTALLED)
	$(MAKE) --jobs 2 --no-print-directory lint types imports units

test-all: lint types imports
	$(BIN)/pytest -n 2 --dist worksteal -m ''

# torch is installed first and alone, so that no other package's requirement decides which build it is.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

units: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(INSTALLED)
	$(BIN)/python benchmarks/layers.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
