# Everything a newcomer needs: `make demo` and `make test` set up a virtual environment in .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint clean always

demo: .venv/installed
	$(BIN)/loadmaster plan onnx:resnet50 fixtures/bert-base.onnx.gz --target edge-npu --out demo-plan

test: lint
	$(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The package is installed in place: editing Python needs no new install, but native code and new modules do.
.venv/installed: pyproject.toml CMakeLists.txt $(wildcard src/native/* src/native/*/*) .venv/modules
	$(PIP) --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) --editable ".[dev]"
	touch $@

.venv/modules: always | .venv/bin/python
	@find src/loadmaster -name '*.py' | sort > $@.new
	@cmp --silent $@.new $@ || cp $@.new $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build demo-plan
