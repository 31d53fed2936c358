# The two commands that matter are `make demo` and `make test`; each sets up .venv by itself the first time.

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

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export UV_HTTP_TIMEOUT ?= 300
export UV_NATIVE_TLS ?= 1
export UV_SYSTEM_CERTS ?= 1

OLDER_TENSORFLOW := 2.14.1 2.19.1
TRACKERS := wandb==0.31.0 mlflow==3.17.2 clearml==2.1.12
NEWER  ?= python3.13
NEWEST := .venv-newest
LOWEST := .venv-lowest
DOWNSTREAM := .venv-downstream
JAX_NIGHTLY := .venv-jax-nightly
BETWEEN ?= python3.12
ON_BETWEEN := core ground
NEW_FLAX := .venv-new-flax
AREA   ?= core
N      ?= 60
SEED   ?= 0
ON_NEWEST := formats/test_saved_model.py formats/test_stablehlo.py orbax/test_conversion.py tensorflow test_saving.py
ON_JAX_NIGHTLY := core transforms text stacks observing surgery nn partitioning training compat checkpoint inspect conformance laws

.PHONY: help demo test slow again long browser chromium torch older newest newest-slow between lowest downstream new-flax jax-nightly laws differential faults optimized trackers nightly lint types lock bench fuzz mutate reference drawings docs publish check clean
.NOTPARALLEL:

help:
	@echo 'make demo       train and look at a small model; needs nothing but Python 3.11 or newer'
	@echo 'make test       the test suite, but for tests that take long'
	@echo 'make slow       the tests that take long'
	@echo 'make again      what failed in the last run, one test after the other'
	@echo 'make long       more of what slow tests show: the other half of the zoo, and most of each slow test with many cases'
	@echo 'make browser    the tests of pages, in Chromium, which it installs as root with apt-get'
	@echo 'make torch      adds PyTorch, so that the tests that compare with it run too'
	@echo 'make older      SavedModels for older releases of TensorFlow, run by them'
	@echo 'make newest     the tests of make test with the newest JAX, on a newer Python: make newest NEWER=python3.13'
	@echo 'make between    the tests of the heart with the newest JAX on the Python between: make between BETWEEN=python3.12'
	@echo 'make newest-slow  the tests of make slow with it, and the exports as XLA compiles for users'
	@echo 'make lowest     the tests of make test with the lowest versions that pyproject.toml allows, on Python 3.11'
	@echo 'make downstream  published packages with plait in the place of flax.nnx; beside Flax, number by number'
	@echo 'make new-flax   what the newest release of Flax has that plait lacks: make new-flax N=400 NEWER=python3.13'
	@echo 'make jax-nightly  the tests that need JAX alone, with the newest build of it: make jax-nightly NEWER=python3.13'
	@echo 'make lint       ruff: rules and formatting'
	@echo 'make types      pyright on the library and its tests'
	@echo 'make check      lint, types, and the tests of make test and make slow'
	@echo 'make laws       the laws, with 5,000 examples each'
	@echo 'make differential  drawn programs on Flax and on plait, compared: make differential N=20000 SEED=0'
	@echo 'make faults     runs that are killed 100 times, and the faults of runs of several processes'
	@echo 'make optimized  the tests of make test and make slow, as XLA compiles for users'
	@echo 'make trackers   runs are logged by Weights & Biases, MLflow and ClearML, offline'
	@echo 'make nightly    what make check leaves out: long, browser, older, between, newest-slow, lowest, laws, differential, faults, optimized, trackers'
	@echo 'make fuzz       the laws, with many more examples'
	@echo 'make mutate     plants faults and counts those that the tests notice: make mutate AREA=core N=60 SEED=0'
	@echo 'make bench      the benchmarks'
	@echo 'make reference  write docs/reference again, the lists of public names'
	@echo 'make drawings   docs/images/*.svg again'
	@echo 'make docs       the documentation as a site, in site/; every link is checked'
	@echo 'make publish    the site of one version, into the branch gh-pages: make publish VERSION=0.1 ALIAS=latest'
	@echo 'make lock       resolve the locks again (needs uv; UPGRADE=1 takes newer versions)'

# TensorFlow has these say less.
demo: export TF_CPP_MIN_LOG_LEVEL := 2
demo: export TF_ENABLE_ONEDNN_OPTS := 0
demo: $(VENV)/demo.stamp
	$(BIN)/python examples/digits.py

# The tests start a few hundred processes. Without bytecode files, each of them would compile all of plait again.
test slow again long browser optimized: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/dev.stamp
	$(PYTEST) -m "not slow and not browser"

slow: $(VENV)/dev.stamp
	$(PYTEST) -m "slow and not long and not browser"

again: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

long: $(VENV)/dev.stamp
	$(PYTEST) -m "long and not browser"

# Elsewhere Chromium, or Chrome, is the reader's to install.
CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome

IN_BROWSER ?= browser and not long

browser: chromium $(VENV)/dev.stamp
	PLAIT_BROWSER=1 $(BIN)/python -m pytest -q -m "$(IN_BROWSER)"

chromium:
	@if ! { $(CHROMIUM); } >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; fi
	@{ $(CHROMIUM); } >/dev/null || { echo 'make browser needs Chromium, which could not be installed here' >&2; exit 1; }

torch: $(VENV)/torch.stamp

older: $(VENV)/dev.stamp $(OLDER_TENSORFLOW:%=$(VENV)/tensorflow-%/stamp)
	PLAIT_TESTS_OPTIMIZE=1 PLAIT_OLDER_TENSORFLOW="$(OLDER_TENSORFLOW:%=$(abspath $(VENV))/tensorflow-%/bin/python)" \
	  $(PYTEST) tests/export/tensorflow/test_readers.py

newest:
	$(MAKE) test VENV=$(NEWEST) PYTHON=$(NEWER)

newest-slow:
	PLAIT_CHECK_DISPATCH=1 $(MAKE) slow VENV=$(NEWEST) PYTHON=$(NEWER)
	PLAIT_TESTS_OPTIMIZE=1 $(NEWEST)/bin/python -m pytest -q $(addprefix tests/export/,$(ON_NEWEST))

between: .venv-between/stamp
	.venv-between/bin/python -m pytest -q -m "not slow and not oracle" $(addprefix tests/,$(ON_BETWEEN))

lowest:
	$(MAKE) test VENV=$(LOWEST) LOCK=requirements/lowest.lock DEMO_LOCK=requirements/lowest.lock

downstream: $(VENV)/dev.stamp $(DOWNSTREAM)/stamp
	PLAIT_DOWNSTREAM="$(abspath $(DOWNSTREAM))/bin/python" $(BIN)/python -m pytest -q -n 2 tests/downstream

new-flax: N = 400
new-flax: $(NEW_FLAX)/stamp
	$(NEW_FLAX)/bin/python -m tests.new_flax -n $(N) --seed $(SEED)

jax-nightly: $(JAX_NIGHTLY)/stamp
	$(JAX_NIGHTLY)/bin/python -m pytest -q -m "not slow and not oracle" $(addprefix tests/,$(ON_JAX_NIGHTLY))

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/dev.stamp
	$(BIN)/pyright

check: lint types test slow

fuzz: $(VENV)/dev.stamp
	HYPOTHESIS_PROFILE=fuzz $(PYTEST) --timeout=0 tests/laws

laws: $(VENV)/dev.stamp
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --timeout=0 tests/laws

differential: N = 20000
differential: $(VENV)/dev.stamp
	@mkdir -p runs
	$(BIN)/python -m tests.differential -n $(N) --seed $(SEED) --report runs/differential.txt

# The tests ask XLA to compile quickly, not well; here it compiles as it does for users.
optimized: $(VENV)/dev.stamp
	PLAIT_TESTS_OPTIMIZE=1 $(PYTEST) -m "not long and not browser"

faults: $(VENV)/dev.stamp
	PLAIT_FAULTS=100 HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q -n 2 --timeout=0 tests/faults

trackers: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TRACKERS)
	$(BIN)/python -m pytest -q tests/training/test_trackers.py

nightly: IN_BROWSER = browser
nightly: long browser older between newest-slow lowest laws differential faults optimized trackers

mutate: $(VENV)/dev.stamp
	$(BIN)/python -m tools.mutants $(AREA) -n $(N) --seed $(SEED)

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

reference: $(VENV)/dev.stamp
	$(BIN)/python docs/make_reference.py

# The curves come from the programs on their pages, so this takes a minute.
drawings: $(VENV)/dev.stamp
	$(BIN)/python docs/make_drawings.py

# Nothing is fetched. The notice is about a successor of MkDocs.
docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# The site of one version, into the branch gh-pages: make publish VERSION=0.1 ALIAS=latest. Only the workflow `docs` pushes.
VERSION ?= dev
ALIAS   ?=
publish: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check mike==2.2.0
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike deploy --update-aliases $(VERSION) $(ALIAS)

# plait is built without isolation, so what pyproject.toml needs for that is in the locks too.
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
define compile
$(BIN)/python -c '$(BUILD_REQUIRES)' | $(UV) pip compile pyproject.toml - $(3:%=--extra %) $(4) $(if $(UPGRADE),--upgrade) \
  --generate-hashes --universal --python-version $(2) --fork-strategy fewest --no-emit-index-url --no-emit-find-links \
  --no-annotate --no-header --quiet --output-file $(1)
endef

lock: | $(BIN)/python
	@test -n "$(UV)" || { echo 'make lock needs uv: $(PYTHON) -m pip install uv'; exit 1; }
	$(call compile,requirements/dev.lock,3.11,dev)
	$(call compile,requirements/demo.lock,3.11,$(DEMO_EXTRAS),--constraint requirements/dev.lock)
	$(call compile,requirements/dev-newest.lock,3.12,dev)
	$(call compile,requirements/demo-newest.lock,3.12,$(DEMO_EXTRAS),--constraint requirements/dev-newest.lock)
	$(call compile,requirements/lowest.lock,3.11,dev,--resolution lowest-direct)

clean:
	rm -rf $(VENV) $(NEWEST) $(LOWEST) $(DOWNSTREAM) $(JAX_NIGHTLY) $(NEW_FLAX) .venv-between build dist runs site .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo 'plait needs Python 3.11 or newer, and there is no $(PYTHON); name one: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("plait needs Python 3.11 or newer; $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)

# uv where there is one; pip otherwise, or where uv does not find its way to the package index. As with uv, Python compiles
# what it imports, when it does: compiling all of it takes pip as long as installing it.
define install
$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python $(1) || \
  )$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(1)
endef

# Only wheels: an sdist would run its build script, with a build backend that no hash covers. In two steps, because pip
# wants a hash for all or for nothing, and a folder has none.
define install_locked
$(call install,--require-hashes --only-binary :all: --requirement $(1))
$(call install,--no-deps --no-build-isolation --editable .)
endef

# `make demo` installs little, at the same versions that the tests use.
$(VENV)/demo.stamp: pyproject.toml $(DEMO_LOCK) | $(BIN)/python
	$(call install_locked,$(DEMO_LOCK))
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	$(call install_locked,$(LOCK))
	@touch $(VENV)/demo.stamp $@

# pip, not uv: it takes the CPU build where the machine's configuration names one.
$(VENV)/torch.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	@touch $@

# An environment for each older TensorFlow. They have wheels for Python 3.11, and the oldest not for newer ones.
$(VENV)/tensorflow-%/stamp: | $(BIN)/python
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==$*
	@touch $@

# What the packages need of their own is theirs to choose; JAX, NumPy and what plait needs are those of the lock.
$(DOWNSTREAM)/stamp: pyproject.toml $(wildcard tests/downstream/*.txt) | $(BIN)/python
	$(PYTHON) -m venv --clear $(DOWNSTREAM)
	sed -nE 's/^((jax|jaxlib|numpy|optax|orbax-checkpoint|flax)==[^ ]+).*/\1/p' requirements/dev.lock > $(DOWNSTREAM)/constraints.txt
	$(DOWNSTREAM)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(DOWNSTREAM)/constraints.txt \
	  --requirement tests/downstream/requirements.txt --editable . absl-py beartype 'pytest>=8.3'
	$(DOWNSTREAM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --requirement tests/downstream/without_dependencies.txt
	@touch $@

# The Python between that of `make test` and that of `make newest`, at the same versions, and what the heart's tests need.
.venv-between/stamp: pyproject.toml requirements/dev-newest.lock
	$(BETWEEN) -m venv --clear $(@D)
	sed -nE 's/^([a-z0-9-]+==[^ ]+).*/\1/p' requirements/dev-newest.lock > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(@D)/constraints.txt \
	  --editable . flax hypothesis pytest pytest-timeout pytest-xdist treescope
	@touch $@

# The newest releases of Flax and of what it needs, made anew each time.
.PHONY: $(NEW_FLAX)/stamp
$(NEW_FLAX)/stamp:
	$(NEWER) -m venv --clear $(NEW_FLAX)
	$(NEW_FLAX)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable . flax \
	  'hypothesis>=6.120' 'pytest>=8.3'
	@touch $@

# The newest builds of JAX, from the index in PIP_EXTRA_INDEX_URL where one is given. It changes every night, so the
# environment is made anew each time.
.PHONY: $(JAX_NIGHTLY)/stamp
$(JAX_NIGHTLY)/stamp:
	$(NEWER) -m venv --clear $(JAX_NIGHTLY)
	$(JAX_NIGHTLY)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[linen]' treescope \
	  'hypothesis>=6.120' 'pytest>=8.3' 'pytest-timeout>=2.4' 'pytest-xdist>=3.6'
	$(JAX_NIGHTLY)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --pre jax jaxlib
	@touch $@
