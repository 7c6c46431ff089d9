# Everything below needs nothing but `make` and a supported Python with venv.
# Paths are relative: make splits names at spaces, and the folder's own path may hold some.

# The first supported interpreter; choose another with `make PYTHON=python3.12 ...`.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$python" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$python"; break; }; done)
SUPPORTED = import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))
VERSION = import sys; print("%d.%d" % sys.version_info[:2])

VENV = .venv
VENV_PYTHON = $(VENV)/bin/python
comma = ,
EXTRAS = dev,estimator,hub,joblib,optuna,orbax,remote,slurm
INPUTS = pyproject.toml constraints.txt
UV = $(VENV_PYTHON) -m uv
COMPILE = $(UV) pip compile --quiet pyproject.toml --universal --python-version 3.10 --no-header \
	--no-annotate --no-emit-index-url --upgrade $(patsubst %,--extra %,$(subst $(comma), ,$(EXTRAS)))

# The sets of versions that `make test-versions` tests, each with the first of its Pythons that uv
# knows here; nothing downloads one.
VERSIONS ?= oldest middle newest
PYTHONS_oldest = 3.10 3.11 3.12
PYTHONS_middle = 3.12 3.11 3.10
PYTHONS_newest = 3.13 3.12 3.11
CONSTRAINTS_oldest = constraints/oldest.txt
CONSTRAINTS_middle = constraints/middle.txt
CONSTRAINTS_newest = constraints.txt
# The variables pin the tools that build packages from source too (older pips read the
# first, newer the second) and build those in isolation whatever the age of pip.
INSTALL = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_USE_PEP517=1 \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV_PYTHON) -m pip install --quiet -c constraints.txt

# Arguments for the command that a target runs: make run ARGS="train.steps=100".
ARGS ?=

.PHONY: help run test test-versions soak gpu-check bench docs pictures dist check format constraints clean same-python
.NOTPARALLEL:

help:
	@echo 'make run          train the example: python -m runner +experiment=lstm_cnn $$ARGS'
	@echo 'make test         run the tests: pytest $$ARGS'
	@echo 'make test-versions  run the tests that depend on versions with the oldest, middle and newest ones'
	@echo 'make soak         inject faults at length: kills, signals, outages, many trials (half an hour)'
	@echo 'make gpu-check    train on two devices and compare with one: two GPUs, or else logical CPUs'
	@echo 'make bench        run all benchmarks (20 minutes, 3 GB of disk for a while)'
	@echo 'make docs         build the site in site/, its links checked (Python 3.11 or newer)'
	@echo 'make pictures     make the pictures of the docs anew (needs chromium and tmux)'
	@echo 'make dist         build what a release publishes, and list what is installed with its licences'
	@echo 'make check        lint, format check and strict types'
	@echo 'make format       apply the formatter and the safe lint fixes'
	@echo 'make constraints  pin the newest, the oldest and the middle versions that pyproject.toml allows'
	@echo 'make clean        remove .venv, .venv-* and caches; runs and results stay'

run: $(VENV)/installed
	$(VENV_PYTHON) -m runner +experiment=lstm_cnn $(ARGS)

# In the order of the files: the long ones, of few tests each, would otherwise be the last.
# Where the environment forbids bytecode, as in many containers, each process would compile all anew.
test: $(VENV)/installed-dev
	PYTHONDONTWRITEBYTECODE= $(VENV_PYTHON) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-versions: $(VERSIONS:%=tested-%)

# The parts that meet other versions of libraries, for all tests would take twice as long; and the
# example, installed from a built package, killed and resumed.
$(VERSIONS:%=tested-%): tested-%: .venv-%/installed
	$(<D)/bin/python -VV
	$(UV) pip check --python $(<D)/bin/python
	PYTHONDONTWRITEBYTECODE= $(<D)/bin/python -m pytest --numprocesses auto --dist loadfile \
		tests/unit/internals tests/unit/session tests/unit/checkpoints tests/unit/rules \
		tests/unit/planning tests/unit/restoration tests/unit/proof \
		tests/unit/graph tests/unit/tracking tests/unit/runs tests/unit/estimator $(ARGS)
	PYTHONDONTWRITEBYTECODE= $(<D)/bin/python -m pytest -m soak tests/integration/test_installed.py
	$(UV) venv --quiet --clear --no-python-downloads --python $(<D)/bin/python .venv-core
	$(UV) pip install --quiet --python .venv-core/bin/python -c $(CONSTRAINTS_$*) --group core
	$(UV) pip install --quiet --python .venv-core/bin/python --no-deps .
	.venv-core/bin/python tests/support/core_only.py

soak: $(VENV)/installed-dev
	$(VENV_PYTHON) -m pytest -m soak $(ARGS)

# On GPUs TensorFlow would round float32 to TF32 and add in any order.
gpu-check: $(VENV)/installed-dev
	NVIDIA_TF32_OVERRIDE=0 TF_DETERMINISTIC_OPS=1 TF_FORCE_GPU_ALLOW_GROWTH=true \
		$(VENV_PYTHON) -m pytest -m 'soak or not soak' tests/unit/graph/test_devices.py $(ARGS)
	$(VENV_PYTHON) -m benchmarks.devices

bench: $(VENV)/installed-dev
	$(VENV_PYTHON) -m benchmarks $(ARGS)

docs: $(VENV)/installed-docs
	$(VENV_PYTHON) -m runner.config.reference_page > docs/reference/configuration.md
	$(VENV_PYTHON) -m runner.config.conflicts > docs/reference/combinations.md
	$(VENV_PYTHON) docs/api.py > docs/reference/api.md
	$(VENV_PYTHON) -m zensical build --strict --config-file mkdocs.yml $(ARGS)

pictures: $(VENV)/installed-docs
	$(VENV_PYTHON) docs/pictures.py $(ARGS)

# The list is a bill of materials of CycloneDX: every package, its version and its licence.
dist: $(VENV)/installed-dev
	rm -rf dist
	$(VENV_PYTHON) -m build
	$(UV) tool run --from cyclonedx-bom cyclonedx-py environment $(VENV_PYTHON) \
		--pyproject pyproject.toml --output-file dist/bom.cdx.json

check: $(VENV)/installed-dev
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: $(VENV)/installed-dev
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

# uv.lock holds addresses of package indexes, so only names and versions are kept. The
# old pins may contradict a new pyproject.toml, so nothing but uv is installed with them.
constraints: same-python
	$(INSTALL) uv
	rm -f uv.lock
	$(UV) export --quiet --python $(VENV_PYTHON) --no-python-downloads \
		--all-extras --no-emit-project --no-hashes --no-annotate --no-header -o constraints.txt
	rm -f uv.lock
	$(COMPILE) -c constraints/oldest.in --resolution lowest-direct -o constraints/oldest.txt
	$(COMPILE) -c constraints/middle.in -o constraints/middle.txt

clean:
	rm -rf $(VENV) .venv-* .cache .pytest_cache .mypy_cache .ruff_cache build dist site

# Stamps: an install is repeated only when what it installs has changed.
$(VENV)/created:
	@"$(PYTHON)" -c '$(SUPPORTED)' 2>/dev/null || { \
		echo 'No supported Python: "$(PYTHON)" is missing, not 3.10 to 3.13, or without venv.' >&2; \
		echo 'Remedy: install Python 3.10 to 3.13 (on Debian and Ubuntu with its python3-venv' >&2; \
		echo 'package), or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)' >&2; \
		exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/created $(INPUTS) | same-python
	@echo 'Installing the pinned packages into $(VENV) (3 GB; a few minutes the first time).'
	$(INSTALL) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/created $(INPUTS) | same-python
	@echo 'Installing the pinned packages into $(VENV) (3 GB; a few minutes the first time).'
	$(INSTALL) -e '.[$(EXTRAS),ray]'
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: $(VENV)/created $(INPUTS) | same-python
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VERSIONS:%=.venv-%/installed): .venv-%/installed: $(INPUTS) constraints/oldest.txt constraints/middle.txt | $(VENV)/installed-dev
	@rm -rf $(@D)
	@for python in $(PYTHONS_$*); do \
		$(UV) venv --quiet --no-python-downloads --python $$python $(@D) 2>/dev/null && exit 0; \
	done; echo 'The $* versions need one of Python $(PYTHONS_$*).' >&2; exit 1
	$(UV) pip install --quiet --python $(@D)/bin/python -b constraints.txt \
		-c $(CONSTRAINTS_$*) -e '.[$(EXTRAS)]'
	@touch $@

# A Python asked for by name must be the one that .venv was made with.
same-python: $(VENV)/created
	@[ '$(origin PYTHON)' = file ] || \
	[ "$$("$(PYTHON)" -c '$(VERSION)')" = "$$($(VENV_PYTHON) -c '$(VERSION)')" ] || { \
		echo '$(VENV) was made by another version of Python than "$(PYTHON)".' >&2; \
		echo 'Remedy: run make clean first, or leave PYTHON out to use $(VENV) as it is.' >&2; \
		exit 1; }
