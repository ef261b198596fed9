# make demo   - install into .venv and run the demonstration
# make test   - install into .venv and run every check but the slow tests
# make slow   - the slow tests (minutes)
# make bench  - ratios to a plain PyTorch step
# make docs   - the pages and the Python API, as a site in docs/_build; warnings are errors

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow bench docs clean

demo: $(VENV)/.cli
	$(BIN)/intercontinet demo

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q

slow: $(VENV)/.dev
	$(BIN)/pytest -q -m slow

bench: $(VENV)/.dev
	$(BIN)/intercontinet bench

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "InterContiNet needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.cli: $(VENV)/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cli]'
	touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) docs/_build
