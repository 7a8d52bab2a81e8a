# Everything a newcomer needs: `make demo` and `make test` set up a virtual environment in .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard src/native/*) CMakeLists.txt

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/loadmaster plan onnx:resnet50 fixtures/bert-base.onnx.gz --target edge-npu --out demo-plan

test: .venv/installed-dev lint
	$(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The package is installed in place, so only its metadata and its native code ask for another install.
.venv/installed: pyproject.toml $(NATIVE) | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build demo-plan
