# Everything a newcomer needs: `make demo` and `make test` set up a virtual environment in .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint ctest sanitize clean always

demo: .venv/installed
	$(BIN)/loadmaster plan onnx:resnet50 fixtures/bert-base.onnx.gz --target edge-npu --out demo-plan

test: lint
	$(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The allocation library without Python, with the sanitizers, and its tests.
ctest:
	cmake -S . -B build/ctest -DCMAKE_BUILD_TYPE=Release -DLOADMASTER_PYTHON=OFF -DLOADMASTER_TESTS=ON -DLOADMASTER_SANITIZE=ON
	cmake --build build/ctest --parallel 2
	ctest --test-dir build/ctest --output-on-failure

# The native core again, with the address and undefined-behaviour sanitizers, in a folder of its own; -S hides the package in place.
SANITIZED := build/sanitized
SANITIZE_TESTS := tests/allocation/test_native_allocation.py tests/planning/test_packing.py tests/allocation/test_fast_path.py \
    tests/planning/test_replay.py tests/mapping tests/planning/test_scheduling.py
sanitize: .venv/installed-dev
	rm -rf $(SANITIZED)
	$(PIP) --target $(SANITIZED) --no-deps --config-settings=build-dir=build/sanitize \
	    --config-settings=cmake.define.LOADMASTER_SANITIZE=ON --config-settings=install.strip=false .
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    PYTHONPATH=$(SANITIZED):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    $(BIN)/python -S -m pytest -p no:cacheprovider $(SANITIZE_TESTS)

# The package is installed in place: editing Python needs no new install, but native code and new modules do.
.venv/installed: pyproject.toml CMakeLists.txt $(wildcard src/native/*/*) .venv/modules
	$(PIP) --editable .
	touch $@

# One install for both: every install compiles the native core.
.venv/installed-dev: pyproject.toml CMakeLists.txt $(wildcard src/native/*/*) .venv/modules
	$(PIP) --editable ".[dev]"
	touch .venv/installed $@

.venv/modules: always | .venv/bin/python
	@find src/loadmaster -name '*.py' | sort > $@.new
	@cmp --silent $@.new $@ || cp $@.new $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build demo-plan
