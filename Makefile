# make demo   build a kernel from a YAML config and run attention with it
# make test   lint, types, and every test this machine can run
# make lint   ruff and mypy alone
# make device all that wants the GPU: receipts, device tests, speed, into build/device
# make figures  configs/measured.json, what `flashgen explain` shows of speed, from the files of benchmarks/
# make format rewrite Python files in the project's format
# make clean  remove what the above made (the environment, caches, built kernels)
#
# The first of them makes .venv from pyproject.toml and constraints.txt. PYTHON=... picks an interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format device figures clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiling a kernel takes one core and about a gigabyte: one test worker a core, at most eight.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 8 ? 8 : n )))

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@python=; \
	for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2])' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then echo "flashgen needs Python 3.11 or newer with venv; set PYTHON=/path/to/python3.x" >&2; exit 1; fi; \
	echo "environment: $(VENV) with $$($$python --version)"; \
	[ -x $(BIN)/python ] || "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cu13,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n $(JOBS)

device: $(STAMP)
	PYTHON=$(BIN)/python benchmarks/device.sh

figures: $(STAMP)
	$(BIN)/python benchmarks/measured.py benchmarks/*.json

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find build -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
