# Every target builds .venv by itself when it is missing or stale.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A virtual environment remembers where it was made: one that was moved, or whose Python is gone,
# is stale whatever the dates of its files say.
ifneq ($(shell $(BIN)/python -c 'import sys; print(sys.prefix)' 2>/dev/null),$(CURDIR)/$(VENV))
$(shell rm -f $(STAMP))
endif

.PHONY: install test test-all lint format clean

install: $(STAMP)

# PIP_CONSTRAINT rather than --constraint: it pins the build environment too.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

test: $(STAMP)
	$(BIN)/python -m pytest

test-all: $(STAMP)
	$(BIN)/python -m pytest -m ''

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
