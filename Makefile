# Everything runs in .venv, which the first target that needs it makes: Python 3.11+, make and gcc are enough.
PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/.ready

.PHONY: setup demo test lint lock
setup: $(STAMP)

# torch comes from pip by itself, so that its build (CPU or CUDA) is the one that the machine's pip finds.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(PY) -m pip install -q --upgrade pip
	$(PY) -m pip install -q torch==2.13.0
	$(PY) -m pip install -q -r requirements.lock
	$(PY) -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	.venv/bin/paceline demo

test: setup lint
	$(PY) -m pytest

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Pins every package but torch and what only its CUDA builds need.
lock: setup
	$(PY) -m uv pip compile -q --universal --python-version 3.11 --extra dev --no-header --no-annotate pyproject.toml \
		| grep -Ev '^(torch|triton|nvidia-|cuda-)' > requirements.lock.new
	mv requirements.lock.new requirements.lock
