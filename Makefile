# Each target sets up all that it needs: a virtual environment in .venv, the packages, the compiled module.
# What exists and is up to date is not made again. Another interpreter: make PYTHON=python3.13 test

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
SOURCES := setup.py $(wildcard tapeflow/*.py tapeflow/*.p[yx][xd] tapeflow/core/* tapeflow/csrc/*)
BUILT := build/in-place-$(VERSION)

.PHONY: demo test test-deep test-kernels test-sanitize lint docs bench wheel build clean distclean

demo: build $(VENV)/installed-opencl
	@$(BIN)/python -m examples.digits

test: lint
	$(BIN)/python -m pytest -q

test-deep: lint
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q
	TAPEFLOW_ISA=v2 $(BIN)/python -m pytest -q

# Every OpenCL kernel on Oclgrind; test has a short form of it, and test-deep all of it.
test-kernels: $(VENV)/installed-test build
	$(BIN)/python tools/check_kernels.py

test-sanitize: $(VENV)/installed-test
	tools/variant.sh asan $(BIN)/python
	tools/variant.sh boundscheck $(BIN)/python

lint: $(VENV)/installed-test build
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	PATH="$(abspath $(BIN)):$$PATH" cython-lint tapeflow
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest tapeflow --concise --mypy-config-file pyproject.toml --allowlist tools/stubtest-allowlist.txt

docs: $(VENV)/installed-docs build
	@$(BIN)/python -m mkdocs build -q
	@echo "Open build/site/index.html"

bench: $(VENV)/installed-bench build
	$(BIN)/python -m bench

wheel: $(VENV)/installed-demo
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

build: $(BUILT)

$(BUILT): $(VENV)/installed-demo $(SOURCES)
	@echo "Building tapeflow/_core"
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(VENV)/python-$(VERSION):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "tapeflow needs Python 3.10 or newer: make PYTHON=python3.12")'
	@echo "Making $(VENV) with Python $(VERSION)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The module is compiled by the editable install; later builds are made in place, from the same objects.
$(VENV)/installed-demo: $(VENV)/python-$(VERSION) pyproject.toml
	@echo "Installing into $(VENV) and compiling (a minute or two, once)"
	@$(PIP) install "setuptools>=77" "Cython>=3.1"
	@$(PIP) install --no-build-isolation -e ".[demo]"
	@touch $@

# Without it the demo trains on the processor alone.
$(VENV)/installed-opencl: $(VENV)/installed-demo
	@for wanted in $$($(BIN)/python tools/requirements.py opencl); do \
		$(PIP) install "$$wanted" || echo "left out: $$wanted"; done
	@touch $@

# An implementation of OpenCL that cannot be installed is left out; the tests name what they miss.
$(VENV)/installed-test: $(VENV)/installed-opencl
	@echo "Installing what the tests need"
	@$(PIP) install $$($(BIN)/python tools/requirements.py test safetensors)
	@$(BIN)/python tools/requirements.py --conditional test | while read -r wanted; do \
		$(PIP) install "$$wanted" || echo "left out: $$wanted"; done
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed-demo
	@echo "Installing what the documents need"
	@$(PIP) install $$($(BIN)/python tools/requirements.py docs)
	@touch $@

# A peer that cannot be installed is left out of the comparison.
$(VENV)/installed-bench: $(VENV)/installed-demo
	@echo "Installing the peers"
	@for peer in $$($(BIN)/python tools/requirements.py bench); do $(PIP) install "$$peer" || echo "left out: $$peer"; done
	@touch $@

clean:
	rm -rf build dist out .build tapeflow/_generated tapeflow/_core*.so tapeflow.egg-info
	rm -rf .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
