# Everything that a fresh machine needs: Python 3.11 or newer, and make. `make help` lists the commands.

VENV ?= .venv
# Which Python makes VENV; empty takes the newest suitable one on PATH. It matters only while VENV is not there.
PYTHON ?=
# A pin such as JAX='jax==0.10.*'; empty takes the newest jax that pyproject.toml allows.
JAX ?=
# Further extras for the tests: WITH=apart adds what the tests of the page in a browser and of the exporters need.
WITH ?=
WORKERS ?= 2
ARGS ?=

COMMA := ,
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
WITH_TEST := test,recipes,equinox$(addprefix $(COMMA),$(WITH))
PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train test aot check bench clean FORCE

help: ## list the commands
	@echo 'usage: make COMMAND [VENV=.venv] [PYTHON=python3.12] [JAX=jax==0.12.*] [WITH=apart] [WORKERS=2] [ARGS=...]'
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

train: $(VENV)/.has-recipes ## install once, then train the image recipe on 4 simulated devices
	$(VENV)/bin/paceline train image --simulate 4 $(ARGS)

test: $(VENV)/.has-test ## run every test, on both cores
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

aot: $(VENV)/.has-aot ## run the tests that compile for GPUs without one; installs JAX's CUDA plugin (4.4 GB)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile tests/aot tests/insight/compiling tests/insight/hardware $(ARGS)

check: $(VENV)/.has-dev ## what CI runs before the tests: format, lint, types, layers, sizes
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright --pythonpath $(PY)
	$(PY) -m pytest --quiet tests/architecture

bench: $(VENV)/.has-test ## measure, and write docs/benchmarks.md
	$(PY) benchmarks/run.py --out docs/benchmarks.md $(ARGS)

clean: ## remove caches and the default environments; runs/ stays
	rm -rf .venv .venv-low .venv-high .venv-aot .pytest_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp a set of extras. Editable: a change of a source needs no new install, a change of pyproject.toml does.
$(VENV)/.has-recipes: EXTRAS = recipes
$(VENV)/.has-test: EXTRAS = $(WITH_TEST)
$(VENV)/.has-aot: EXTRAS = test,recipes,equinox,cuda13
$(VENV)/.has-dev: EXTRAS = dev,recipes,equinox
$(VENV)/.has-test: $(VENV)/.with
$(VENV)/.has-%: pyproject.toml $(VENV)/.jax | $(VENV)/.ready
	@echo "installing paceline[$(EXTRAS)] into $(VENV) (once)"
	@$(PIP) --editable '.[$(EXTRAS)]' $(if $(JAX),'$(JAX)')
	@touch $@

# Holds the pin, and changes only with it: another JAX= must not be taken for installed.
$(VENV)/.jax: FORCE | $(VENV)/.ready
	@echo '$(JAX)' | cmp -s - $@ || echo '$(JAX)' > $@

$(VENV)/.with: FORCE | $(VENV)/.ready
	@echo '$(WITH)' | cmp -s - $@ || echo '$(WITH)' > $@

# A PATH entry may be a pyenv shim that does not run, so each candidate is tried, not just looked up.
$(VENV)/.ready:
	@if $(PY) -m pip --version >/dev/null 2>&1; then touch $@; exit 0; fi; \
	for python in $(PYTHONS); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "creating $(VENV) with $$($$python --version)"; \
	    $$python -m venv --clear '$(VENV)' && touch $@ && exit 0; exit 1; \
	  fi; \
	done; \
	for python in $(PYTHONS); do \
	  version=$$($$python --version 2>&1) || continue; \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "error: $$python ($$version) has no venv module"; \
	    echo "  fix: apt-get install python3-venv, or make PYTHON=/path/to/a/complete/python3"; \
	  else \
	    echo "error: $$python is $$version; Paceline needs Python 3.11 or newer"; \
	    echo "  fix: install one and run make PYTHON=/path/to/python3.11"; \
	  fi >&2; \
	  exit 1; \
	done; \
	echo "error: no Python found (tried: $(PYTHONS))" >&2; \
	echo "  fix: install Python 3.11 or newer, or make PYTHON=/path/to/python3" >&2; \
	exit 1
