# Every target builds .venv by itself when it is missing or stale.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A virtual environment remembers where it was made: a copied or moved one, or one whose Python is
# gone, is stale whatever the dates of its files say.
ifneq ($(shell cat $(STAMP) 2>/dev/null && $(BIN)/python -c '' 2>/dev/null && echo works),$(CURDIR) works)
$(shell rm -f $(STAMP))
endif

.PHONY: install quickstart test test-all docs bench torture lint format clean

# torchattacks, an oracle of the tests, asks for torchvision, which it does not import.
# PIP_CONSTRAINT rather than --constraint: it pins the build environment too.
PIP := PIP_CONSTRAINT='$(CURDIR)/constraints.txt' $(BIN)/python -m pip install --quiet --disable-pip-version-check

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps torchattacks==3.5.1
	$(BIN)/python -m enresnet.native
	printf '%s\n' '$(CURDIR)' > $(STAMP)

quickstart: $(STAMP)
	$(BIN)/enresnet quickstart

# A file's tests stay together: many share what is trained for the first of them.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test: $(STAMP)
	$(PYTEST)

# timm, torchvision and adv-lib ask for a torch of their own, with gigabytes for GPUs; ours will do.
NETWORKS := --no-deps timm torchvision adv-lib

test-all: $(STAMP)
	$(PIP) --editable '.[dev,bench,demo,docs,export,networks]' selenium
	$(PIP) $(NETWORKS)
	$(PYTEST) -m ''

# The documentation site. Every warning is an error; nothing is fetched.
docs: $(STAMP)
	$(PIP) --editable '.[dev,docs]'
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs
	@echo "the documentation: build/docs/index.html"

# Speed side by side with others, an hour on two cores. BENCH takes other options, such as
# '--only growth' or '--tiny'.
BENCH ?= --json results.json --picture ../docs/images/growth.png
bench: $(STAMP)
	$(PIP) --editable '.[dev,bench]'
	$(PIP) $(NETWORKS)
	cd benchmarks && '$(CURDIR)/$(BIN)/python' -m speed $(BENCH)

# Malformed inputs, kills and faults against the whole package: hours, in a folder of its own.
# Stopped, it goes on when called again. TORTURE takes options, such as '--workers 4'.
torture: $(STAMP)
	cd benchmarks && '$(CURDIR)/$(BIN)/python' -m torture --folder ../build/torture \
		--json-file ../results/torture.json $(TORTURE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
