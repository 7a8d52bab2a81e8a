# Everything a newcomer needs: `make demo` and `make test` set up a virtual environment in .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
# Of the thousands of modules that come, Python compiles those that are imported, once: so it must be let, whatever the shell says.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Alone and first: asked for by other packages, pip might bring a build with gigabytes of CUDA.
TORCH := torch==2.13.0

.PHONY: demo check test fuzz lint docs test-python wheel ctest sanitize clean always

demo: .venv/installed
	@echo "Planning four mini-batches each of ResNet-50 and BERT-base, int8, on a small NPU: some seconds. Operators stay whole: eight mini-batches keep all cores busy."
	$(BIN)/loadmaster plan onnx:resnet50 fixtures/bert-base.onnx.gz --target edge-npu --precision int8 --mini-batches 4 --cut none --effort quick --out demo-plan
	@echo
	@echo "Open demo-plan/report.html in a browser. To try next (docs/tutorial.md goes on from there):"
	@echo "  $(BIN)/loadmaster verify demo-plan/plan.json"
	@echo "  $(BIN)/loadmaster plan fixtures/mobilenetv2.onnx.gz --target edge-npu --precision int8 --out my-plan    # or your own .onnx file"
	@echo "  $(BIN)/loadmaster plan onnx:squeezenet --target edge-npu --precision int8 --sweep scratchpad=1MiB:8MiB --effort quick --out sweep"

# What takes a minute, for daily work; `make test` is everything but what waits for the night (.ci/nightly).
check: lint
	$(PYTEST) -m "not slow"

test: lint
	$(PYTEST) -rs --durations=25

# `make test` with four times the random examples, other ones in every run; FUZZ=100 for a hundred times as many.
fuzz: export LOADMASTER_FUZZ := $(or $(FUZZ),1)
fuzz: lint
	$(PYTEST) -rs --durations=25

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	git ls-files 'src/native/*' 'tests/native/*' | grep -E '\.(cpp|hpp|h)$$' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy

# The site, in build/site; warnings are errors, so that a broken link or a faulty docstring fails.
docs: .venv/installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -E -d build/doctrees docs build/site
	@echo "build/site/index.html"

# The package is there already, so that this adds what builds the site and compiles nothing.
.venv/installed-docs: .venv/installed
	$(PIP) "loadmaster[docs]"
	touch $@

# On another Python, as a user installs it: make test-python OTHER=/path/to/python3.13 (without OTHER: 3.13 or 3.12, if there is one).
test-python:
	.ci/other-python $(OTHER)

# The source archive and the wheels, in dist/, tried in fresh environments.
wheel:
	.ci/wheels

# Native code that needs no Python (the allocation library, the runtime's allocator), with the sanitizers, and its tests; then the library as
# others find it once it is installed.
ctest:
	cmake -S . -B build/ctest -DCMAKE_BUILD_TYPE=Release -DLOADMASTER_PYTHON=OFF -DLOADMASTER_TESTS=ON -DLOADMASTER_SANITIZE=ON
	cmake --build build/ctest --parallel 2
	ctest --test-dir build/ctest --output-on-failure
	.ci/library

# The whole native core again, with the address and undefined-behaviour sanitizers, in a folder of its own, and its tests, those of `make ctest`
# too; -S hides the package in place. Without optimisation at link time, which takes minutes and finds nothing.
SANITIZED := build/sanitized
SANITIZE_TESTS := tests/allocation/test_native_allocation.py tests/allocation/test_telamalloc.py tests/allocation/test_fast_path.py \
    tests/allocation/test_packing_at_scale.py tests/allocation/test_demands.py tests/mapping tests/placement/test_between_kernels.py \
    tests/placement/test_overlapping.py tests/planning/test_joint_plans.py tests/planning/test_packing.py tests/planning/test_replay.py \
    tests/test_native_border.py tests/test_twins.py
sanitize: .venv/installed-dev
	rm -rf $(SANITIZED)
	$(PIP) --target $(SANITIZED) --no-deps --config-settings=build-dir=build/sanitize \
	    --config-settings=cmake.build-type=Debug --config-settings=cmake.define.LOADMASTER_SANITIZE=ON \
	    --config-settings=cmake.define.LOADMASTER_TESTS=ON --config-settings=install.strip=false .
	ctest --test-dir build/sanitize --output-on-failure
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    PYTHONPATH=$(SANITIZED):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    $(BIN)/python -S -m pytest --tx '2*popen//python=$(BIN)/python -S' --dist worksteal -p no:cacheprovider \
	    -m "not slow" --durations=10 $(SANITIZE_TESTS)

# The package is installed in place: editing Python needs no new install, but native code and new modules do.
.venv/installed: pyproject.toml CMakeLists.txt $(wildcard src/native/*/*) .venv/modules
	$(PIP) --editable ".[plan]"
	touch $@

# One install for both: every install compiles the native core.
.venv/installed-dev: pyproject.toml CMakeLists.txt $(wildcard src/native/*/*) .venv/modules
	$(PIP) $(TORCH)
	$(PIP) --editable ".[dev]"
	touch .venv/installed $@

.venv/modules: always | .venv/bin/python
	@find src/loadmaster -name '*.py' | sort > $@.new
	@cmp --silent $@.new $@ || cp $@.new $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist demo-plan
