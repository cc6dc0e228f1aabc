# The two commands of the README, and others for developers. Each makes .venv where it is missing; the files
# .venv/.demo, .venv/.test and .venv/.docs record what was installed.

# Another folder holds a second environment: make test-python VENV=.venv-3.13 PYTHON=3.13
VENV := .venv
# A Python from 3.8 to 3.13: a path, a command or a version; empty: python3.
PYTHON ?=
ARGS ?=

.PHONY: demo test test-stress test-processors test-python test-horovod test-gpu-record bench docs docs-links look-jupyter \
	lint named

demo: $(VENV)/.demo
	@$(VENV)/bin/python examples/digits.py --out examples/output $(ARGS)

# ARGS=--slow runs the slow tests too, as CI does. Two processes with one thread each are faster than one with two. Each
# runs its half in order, so that what a module's tests share is made once, and takes from the other's in the end. A test
# that hangs fails in the end. Python keeps what it compiled, whatever the environment says: without, each process that
# a test starts compiles all of mxmp anew.
test: $(VENV)/.test
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal --timeout 300 $(ARGS)

# Interrupts, kills and threads, under load. ARGS="--seed 7" repeats a run; without, the seed is drawn and printed.
test-stress: $(VENV)/.test
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m stress -n 2 --dist worksteal --timeout 300 $(ARGS)

# What is decided, under each kind of processor (mxmp/processors.py), on any machine.
test-processors: $(VENV)/.test
	@$(VENV)/bin/python -c 'from mxmp.processors import KINDS; print(*(kind.name for kind in KINDS), sep="\n")' | while read -r kind; do echo "pinned to: $$kind"; \
		PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal --timeout 300 \
		--processor "$$kind" --deselect tests/devices/test_amx.py tests/passes tests/devices tests/diagnose/test_doctor.py \
		tests/gluon/test_freeze.py tests/gluon/test_convert.py tests/symbol/test_convert.py tests/module/test_binding.py \
		tests/tune/test_speed.py $(ARGS) </dev/null || exit 1; done

# What depends on the versions of Python and numpy, for a second environment: stand-ins for what they removed, commands,
# files, states, the step in every front, a conversion of each network.
test-python: $(VENV)/.test
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --slow -n 2 --dist worksteal --timeout 300 \
		tests/compat tests/cli tests/train tests/*/test_behaviours.py tests/symbols/test_networks.py tests/test_*.py $(ARGS)

# Horovod is built from source, in an environment of its own.
test-horovod: $(VENV)-horovod/.built
	@OMP_NUM_THREADS=1 $(VENV)-horovod/bin/python -m pytest --slow --timeout 120 \
		tests/distributed/test_horovod.py $(ARGS)

# What a GPU is asked to do, recorded without one: on mxnet-cu112, whose files would overwrite those of the CPU's MXNet
# and which therefore has an environment of its own.
test-gpu-record: $(VENV)-gpu-record/.built
	@$(VENV)-gpu-record/bin/python -m tools.gpu_record.build $(VENV)-gpu-record/recorder
	@OMP_NUM_THREADS=1 $(VENV)-gpu-record/bin/python -m pytest --slow -n 2 --dist loadgroup --timeout 300 \
		tests/gpu_record $(ARGS)

# What the tables of the README and the pages come from, with nothing else running: `python -m benchmarks.tables`.
CASES ?= inference training trainer-step conversion placement
bench: $(VENV)/.demo
	@$(VENV)/bin/python -m benchmarks --threads 2 --store benchmarks/results --plot benchmarks/results/bench.png $(ARGS) $(CASES)

# Fails on a public name without a docstring, and on anything that Sphinx warns of.
docs: $(VENV)/.docs
	@$(VENV)/bin/python -m ruff check --select D100,D101,D102,D103,D104,D106 mxmp symbols
	@$(VENV)/bin/python -m sphinx -q -W --keep-going -E -b html docs docs/build/html
	@echo "Written: docs/build/html/index.html"

# Asks every server that the pages link to.
docs-links: $(VENV)/.docs
	@$(VENV)/bin/python -m sphinx -q -b linkcheck docs docs/build/links

# Pictures of results in JupyterLab, which has an environment of its own.
look-jupyter: $(VENV)/.test $(VENV)-jupyter/.built
	@sh tools/browser.sh
	@mkdir -p docs/build/jupyter
	@$(VENV)/bin/python -m tools.jupyter_look $(VENV)-jupyter/bin docs/build/jupyter
	@echo "Written: docs/build/jupyter/light.png, docs/build/jupyter/dark.png"

lint: $(VENV)/.test
	@$(VENV)/bin/python -m ruff check .
	@$(VENV)/bin/python -m mypy

$(VENV)/.demo $(VENV)/.test $(VENV)/.docs: $(VENV)/.%: setup.py tools/venv.sh | $(if $(PYTHON),named)
	@sh tools/venv.sh $(VENV) $* "$(PYTHON)"
	@touch $@

# A Python that is named is the one that runs: fails where the environment has another.
named:
	@sh tools/venv.sh $(VENV) "" "$(PYTHON)"

named-%:
	@sh tools/venv.sh $(VENV)-$* "" "$(PYTHON)"

$(VENV)-horovod/.built: setup.py tools/venv.sh tools/horovod.sh | $(if $(PYTHON),named-horovod)
	@sh tools/horovod.sh $(VENV)-horovod "$(PYTHON)"
	@touch $@

$(VENV)-jupyter/.built: | $(if $(PYTHON),named-jupyter)
	@sh tools/venv.sh $(VENV)-jupyter "" "$(PYTHON)"
	@$(VENV)-jupyter/bin/python -m pip install --quiet --disable-pip-version-check 'jupyterlab>=4'
	@touch $@

$(VENV)-gpu-record/.built: setup.py tools/venv.sh tools/gpu_record.sh | $(if $(PYTHON),named-gpu-record)
	@sh tools/gpu_record.sh $(VENV)-gpu-record "$(PYTHON)"
	@touch $@
