# `make demo` and `make test` need Python >= 3.11 and a C++17 compiler; they set up .venv themselves, once.
#
#   PYTHON      the Python that makes .venv (default: python3)
#   TORCH       what pip installs as torch (default: torch==2.13.0); TORCH_PIP_ARGS are passed along with it, e.g.
#               the index of PyTorch's CPU wheels, which saves gigabytes where there is no GPU
#   GPU_PYTHON  the Python, with a CUDA build of torch, of gpu-test and gpu-bench (default: python3)

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_PIP_ARGS ?=
GPU_PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := $(wildcard csrc/*) CMakeLists.txt pyproject.toml
CPP_TESTS := $(wildcard tests/cpp/*)

.PHONY: demo test lint format stubs bench gpu-test gpu-bench cpp-test-thread cpp-test-address no-cuda clean help

help:
	@echo "make demo | test | lint | bench | gpu-test | gpu-bench | clean"

demo: $(VENV)/.weft-built
	$(BIN)/weft demo

test: $(VENV)/.weft-built cpp-test-thread cpp-test-address
	$(BIN)/python -m pytest

lint: $(VENV)/.weft-built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(wildcard csrc/*.h csrc/*.cpp csrc/*.cu tests/cpp/*.h tests/cpp/*.cpp)

format: $(VENV)/.weft-built
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(wildcard csrc/*.h csrc/*.cpp csrc/*.cu tests/cpp/*.h tests/cpp/*.cpp)

bench: $(VENV)/.weft-built
	$(BIN)/weft bench all --out benchmarks/results

# The stub of the extension, from what is built.
stubs: $(VENV)/.weft-built
	$(BIN)/python -m nanobind.stubgen -q -m weft._core -o python/weft/_core.pyi

# -- the virtual environment, the packages, the extension: each made once

$(VENV)/bin/python:
	@echo "weft: making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "weft needs Python 3.11 or later; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.weft-packages: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "weft: installing packages (a few minutes, once)"
	$(PIP) install $(TORCH_PIP_ARGS) "$(TORCH)"
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	$(BIN)/python tools/print_requirements.py | $(PIP) install -c constraints.txt -r /dev/stdin
	@touch $@

$(VENV)/.weft-built: $(VENV)/.weft-packages $(SOURCES)
	@echo "weft: building the extension"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

# -- C++ tests of the CPU runtime, under sanitizers

cpp-test-thread: SANITIZE := thread
cpp-test-address: SANITIZE := address,undefined
cpp-test-thread cpp-test-address: $(VENV)/.weft-packages $(CPP_TESTS)
	$(BIN)/cmake -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DWEFT_TESTS=ON -DWEFT_CUDA=OFF \
	  -DWEFT_SANITIZE=$(SANITIZE) -DCMAKE_BUILD_TYPE=RelWithDebInfo > build-$@.log || { cat build-$@.log; exit 1; }
	@rm -f build-$@.log
	$(BIN)/cmake --build build/$@
	$(BIN)/ctest --test-dir build/$@ --output-on-failure

# The extension without CUDA sources, as where there is no nvcc.
no-cuda: $(VENV)/.weft-packages
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps --target build/no-cuda --upgrade \
	  -C cmake.define.WEFT_CUDA=OFF -C build-dir=build/no-cuda-cmake .
	$(BIN)/python tests/check_no_cuda.py build/no-cuda

# -- on a machine with a GPU and a CUDA build of torch

gpu-test:
	$(GPU_PYTHON) -m pip install -q --no-build-isolation --no-deps .
	$(GPU_PYTHON) -m pytest tests/gpu

gpu-bench: export WEFT_COMMIT ?= $(shell git describe --always --dirty=+ --abbrev=12 2>/dev/null)
gpu-bench:
	$(GPU_PYTHON) -m pip install -q --no-build-isolation --no-deps .
	$(GPU_PYTHON) -m weft.cli bench all --device cuda --out benchmarks/results/gpu
	$(GPU_PYTHON) -m weft.cli bench step --device cuda --shape llama-8b-eagle3 --out benchmarks/results/gpu/llama-8b-shape
	$(GPU_PYTHON) -m weft.cli bench overhead --device cuda --shape llama-8b-eagle3 --no-random \
	  --out benchmarks/results/gpu/llama-8b-shape

clean:
	rm -rf build dist out $(VENV)
