# `make demo` and `make test` need Python and make; each sets up .venv by itself the first time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)
DEMO_EXTRAS := demo tensorflow onnx

# JAX 0.11 and later need Python 3.12, so Python 3.11 has a set of versions of its own, and newer Pythons the newest.
OLDEST_OR_NEWEST := import sys; print("" if sys.version_info < (3, 12) else "-newest")
SET := $(shell { $(BIN)/python -c '$(OLDEST_OR_NEWEST)' || $(PYTHON) -c '$(OLDEST_OR_NEWEST)'; } 2>/dev/null)
LOCK      := requirements/dev$(SET).lock
DEMO_LOCK := requirements/demo$(SET).lock

# A worker for each core, as far as the memory goes (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -q -n auto --dist worksteal

# The tests start a few hundred processes. Without bytecode files, each of them would compile all of plait again.
export PYTHONDONTWRITEBYTECODE =
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export UV_HTTP_TIMEOUT ?= 300
export UV_NATIVE_TLS ?= 1
export UV_SYSTEM_CERTS ?= 1

.PHONY: help demo test check slow lint types docs reference bench mutate nox torch chromium browser lock clean
.NOTPARALLEL:

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '%-15s %s\n' "$$name" "$$text"; done

demo: $(VENV)/demo.stamp ## train a small model and look at it; needs nothing but Python 3.11 or newer
	$(BIN)/python examples/digits.py

test: $(VENV)/dev.stamp ## the tests, but for those that take long
	$(PYTEST) -m "not slow and not browser"

# The files that differ from main, or from the last commit where that is main.
TYPED   := 'src/*.py' 'tests/*.py' 'docs/*.py' 'benchmarks/*.py'
SINCE    = $(shell git merge-base HEAD main 2>/dev/null || echo HEAD)
CHANGED  = $(shell { git diff --name-only --diff-filter=d $(SINCE) -- $(TYPED); \
             git ls-files --others --exclude-standard -- $(TYPED); } 2>/dev/null)

check: lint ## in two minutes: lint, the types of what has changed, some tests of each part
	$(if $(CHANGED),$(BIN)/pyright $(CHANGED))
	$(PYTEST) -m "not slow and not browser" @tests/smoke.txt

slow: $(VENV)/dev.stamp ## the tests that take long
	$(PYTEST) -m "slow and not long and not browser"

lint: $(VENV)/dev.stamp ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/dev.stamp ## pyright on the library, its tests, its documentation and the benchmarks
	$(BIN)/pyright

# Nothing is fetched. The notice is about a successor of MkDocs.
docs: $(VENV)/dev.stamp ## the documentation as a site, in site/; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

reference: $(VENV)/dev.stamp ## write docs/reference again, the lists of public names
	$(BIN)/python docs/make_reference.py

bench: $(VENV)/dev.stamp ## the benchmarks: make bench NAMES='dispatch graph'
	$(BIN)/python -m benchmarks $(NAMES)

AREA ?= core
N    ?= 60
SEED ?= 0
mutate: $(VENV)/dev.stamp ## plant faults and count those that the tests notice: make mutate AREA=core N=60 SEED=0
	$(BIN)/python -m tools.mutants $(AREA) -n $(N) --seed $(SEED)

nox: $(VENV)/dev.stamp ## other versions, more examples, longer runs: make nox SESSION=newest; without SESSION, their list
	@$(BIN)/python -m nox --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check nox==2026.10.20
	$(BIN)/python -m nox $(if $(SESSION),--session $(SESSION),--list) $(if $(ARGS),-- $(ARGS))

torch: $(VENV)/torch.stamp ## add PyTorch, so that the tests that compare with it run too

# Elsewhere Chromium, or Chrome, is the reader's to install.
CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome
chromium:
	@if ! { $(CHROMIUM); } >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; fi
	@{ $(CHROMIUM); } >/dev/null || { echo 'make browser needs Chromium, which could not be installed here' >&2; exit 1; }

browser: chromium $(VENV)/dev.stamp ## the tests of pages in Chromium, which it installs with apt-get if it runs as root
	PLAIT_BROWSER=1 $(BIN)/python -m pytest -q -m browser tests/inspect/explore tests/docs/test_site.py

# plait is built without isolation, so what pyproject.toml needs for that is in the locks too.
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
define compile
$(BIN)/python -c '$(BUILD_REQUIRES)' | $(UV) pip compile pyproject.toml - $(3:%=--extra %) $(4) $(if $(UPGRADE),--upgrade) \
  --generate-hashes --universal --python-version $(2) --fork-strategy fewest --no-emit-index-url --no-emit-find-links \
  --no-annotate --no-header --quiet --output-file $(1)
endef

lock: | $(BIN)/python ## resolve the locks again (needs uv; UPGRADE=1 takes newer versions)
	@test -n "$(UV)" || { echo 'make lock needs uv: $(PYTHON) -m pip install uv'; exit 1; }
	$(call compile,requirements/dev.lock,3.11,dev)
	$(call compile,requirements/demo.lock,3.11,$(DEMO_EXTRAS),--constraint requirements/dev.lock)
	$(call compile,requirements/dev-newest.lock,3.12,dev)
	$(call compile,requirements/demo-newest.lock,3.12,$(DEMO_EXTRAS),--constraint requirements/dev-newest.lock)
	$(call compile,requirements/lowest.lock,3.11,dev,--resolution lowest-direct)

clean: ## remove the environments and all that is built
	rm -rf .venv .venv-newest .venv-lowest .nox build dist runs site .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo 'plait needs Python 3.11 or newer, and there is no $(PYTHON); name one: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("plait needs Python 3.11 or newer; $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)

# uv where there is one; pip otherwise, or where uv does not find its way to the package index. As with uv, Python compiles
# what it imports, when it does: compiling all of it takes pip as long as installing it.
define install
$(if $(UV),$(UV) pip install $(QUIET) --python $(BIN)/python $(1) || \
  )$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --no-compile $(1)
endef
QUIET := --quiet

# Only wheels: an sdist would run its build script, with a build backend that no hash covers. In two steps, because pip
# wants a hash for all or for nothing, and a folder has none.
define install_locked
$(call install,--require-hashes --only-binary :all: --requirement $(1))
$(call install,--no-deps --no-build-isolation --editable .)
endef

# `make demo` installs less than `make test`, at the same versions, and shows how far it is.
$(VENV)/demo.stamp: QUIET :=
$(VENV)/demo.stamp: pyproject.toml $(DEMO_LOCK) | $(BIN)/python
	@echo 'Downloading JAX, TensorFlow, ONNX Runtime and others into $(VENV), once: about 550 MB, 2.3 GB when unpacked; some minutes.'
	$(call install_locked,$(DEMO_LOCK))
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	$(call install_locked,$(LOCK))
	@touch $(VENV)/demo.stamp $@

# pip, not uv: it takes the CPU build where the machine's configuration names one.
$(VENV)/torch.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	@touch $@
