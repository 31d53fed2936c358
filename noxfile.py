"""Runs of the tests beside ``make test``: other versions of Python and of libraries, more examples, longer runs.

``make nox`` lists them, ``make nox SESSION=newest`` runs one. Those that need only the locked versions use the
environments of the Makefile, whose files have checksums; the others make their own in ``.nox``.
"""

import os
import re
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHON = ROOT / ".venv" / "bin" / "python"
OLDEST, BETWEEN, NEWEST = "python3.11", "python3.12", os.environ.get("NEWER", "python3.13")
PYTEST = ("-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal")

nox.options.sessions = []
nox.options.stop_on_first_error = False
in_venv = nox.session(venv_backend="none")

# What the tests of the heart and of JAX alone need.
TESTERS = ("hypothesis>=6.155", "pytest>=8.3", "pytest-timeout>=2.4", "pytest-xdist>=3.6", "treescope>=0.1.10")
HEART = ("tests/core", "tests/util")
JAX_ALONE = [
    f"tests/{name}"
    for name in (
        "core", "transforms", "partitioning", "nn", "edit", "checkpoint", "inspect", "training", "flax/compat",
        "conformance", "laws",
    )
]  # fmt: skip


def make(session: nox.Session, *arguments: str, **environment: str) -> None:
    session.run("make", *arguments, external=True, env=environment)


def tests(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run tests in the environment of ``make test``."""
    make(session, ".venv/dev.stamp")
    session.run(str(PYTHON), *PYTEST, *arguments, *session.posargs, external=True, env=environment)


def install_at(session: nox.Session, lock: str, names: str, *packages: str) -> None:
    """Install packages; those that ``names`` matches have the versions of a lock."""
    pinned = re.findall(rf"^(?:{names})==[^ ]+", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pinned))
        file.flush()
        session.install("--constraint", file.name, *packages)


@in_venv
def newest(session: nox.Session) -> None:
    """The fast tests with the newest versions of all, on Python 3.13 (NEWER names another)."""
    make(session, "test", "VENV=.venv-newest", f"PYTHON={NEWEST}")


@nox.session(venv_backend="none", name="newest-slow")
def newest_slow(session: nox.Session) -> None:
    """The slow tests with the newest versions; and the exports, as XLA compiles for users."""
    make(session, "slow", "VENV=.venv-newest", f"PYTHON={NEWEST}", PLAIT_CHECK_DISPATCH="1")
    names = "formats/test_saved_model.py formats/test_stablehlo.py tensorflow test_saving.py"
    exports = [f"tests/export/{name}" for name in names.split()]
    python = ROOT / ".venv-newest" / "bin" / "python"
    session.run(str(python), *PYTEST, *exports, external=True, env={"PLAIT_TESTS_OPTIMIZE": "1"})


@in_venv
def lowest(session: nox.Session) -> None:
    """The fast tests with the lowest versions that pyproject.toml allows, on Python 3.11."""
    lock = "requirements/lowest.lock"
    make(session, "test", "VENV=.venv-lowest", f"PYTHON={OLDEST}", f"LOCK={lock}", f"DEMO_LOCK={lock}")


@nox.session(python=BETWEEN)
def between(session: nox.Session) -> None:
    """The tests of the heart on Python 3.12, at the newest versions."""
    install_at(session, "dev-newest.lock", "[a-z0-9-]+", "--editable", ".", "flax", *TESTERS)
    session.run("python", *PYTEST, "-m", "not slow and not oracle", *HEART)


@nox.session(name="jax-nightly", python=NEWEST)
def jax_nightly(session: nox.Session) -> None:
    """The tests that need JAX alone, with last night's build: PIP_EXTRA_INDEX_URL may name an index."""
    session.install("--editable", ".[linen]", *TESTERS)
    session.install("--upgrade", "--pre", "jax", "jaxlib")
    session.run("python", *PYTEST, "-m", "not slow and not oracle", *JAX_ALONE)


@nox.session(name="new-flax", python=NEWEST)
def new_flax(session: nox.Session) -> None:
    """What the newest release of Flax has that plait lacks."""
    session.install("--upgrade", "--editable", ".", "flax", *TESTERS)
    session.run("python", "-m", "tests.new_flax", *(session.posargs or ("-n", "400")))


@nox.session(python=OLDEST)
def downstream(session: nox.Session) -> None:
    """Published packages with plait in the place of flax.nnx; beside Flax, number by number."""
    folder = "tests/downstream"
    names = "jax|jaxlib|numpy|optax|orbax-checkpoint|flax"
    own = ("--editable", ".", "absl-py", "beartype", "pytest>=8.3")
    install_at(session, "dev.lock", names, "--requirement", f"{folder}/requirements.txt", *own)
    session.install("--no-deps", "--requirement", f"{folder}/without_dependencies.txt")
    tests(session, "-n", "2", folder, PLAIT_DOWNSTREAM=f"{session.bin}/python")


@nox.session(name="older-tensorflow", python=OLDEST)
@nox.parametrize("tensorflow", ["2.14.1", "2.19.1"])
def older_tensorflow(session: nox.Session, tensorflow: str) -> None:
    """SavedModels for an older release of TensorFlow, run by it."""
    session.install(f"tensorflow-cpu=={tensorflow}")
    settings = {"PLAIT_OLDER_TENSORFLOW": f"{session.bin}/python", "PLAIT_TESTS_OPTIMIZE": "1"}
    tests(session, "tests/export/tensorflow/test_readers.py", **settings)


@nox.session(python=OLDEST)
def models(session: nox.Session) -> None:
    """Published models of every family at every setting, beside the library that they are published for."""
    session.install("torch==2.13.0", "transformers==5.24.0", "safetensors", "numpy")
    folder = Path(session.create_tmp()).absolute()
    drawn, saved = str(folder / "drawn"), str(folder / "saved")
    oracle = ("python", "-m", "tests.models.oracle")
    session.run(*oracle, "draw", drawn)
    session.run(*oracle, "draw", drawn, "--odd")
    session.run(*oracle, "alter", drawn, "*-plain")
    (folder / "saved").mkdir(exist_ok=True)
    tests(session, "--timeout=0", "tests/models", PLAIT_MODELS=drawn, PLAIT_MODELS_SAVED=saved)
    session.run(*oracle, "read", saved, drawn)


@in_venv
def long(session: nox.Session) -> None:
    """More of what slow tests show: the other half of the zoo, and most of each slow test with many cases."""
    tests(session, "-m", "long")


@in_venv
def optimized(session: nox.Session) -> None:
    """The tests of make test and make slow, as XLA compiles for users."""
    tests(session, "-m", "not long and not browser", PLAIT_TESTS_OPTIMIZE="1")


@in_venv
def laws(session: nox.Session) -> None:
    """The laws, with 5,000 examples each."""
    tests(session, "--timeout=0", "tests/laws", HYPOTHESIS_PROFILE="nightly")


@in_venv
def fuzz(session: nox.Session) -> None:
    """The laws, with 2,000 examples that are others each time."""
    tests(session, "--timeout=0", "tests/laws", HYPOTHESIS_PROFILE="fuzz")


@in_venv
def differential(session: nox.Session) -> None:
    """20,000 drawn programs on Flax and on plait, compared; others with ARGS='-n 400 --seed 1'."""
    make(session, ".venv/dev.stamp")
    (ROOT / "runs").mkdir(exist_ok=True)
    command = (str(PYTHON), "-m", "tests.differential", "--report", "runs/differential.txt")
    session.run(*command, *(session.posargs or ("-n", "20000", "--seed", "0")), external=True)


@in_venv
def faults(session: nox.Session) -> None:
    """Runs that are killed 100 times, the faults of runs of several processes, 2,000 damaged files for each reader."""
    settings = {"PLAIT_FAULTS": "100", "HYPOTHESIS_PROFILE": "fuzz"}
    tests(session, "-n", "2", "--timeout=0", "tests/faults", **settings)


@in_venv
def publish(session: nox.Session) -> None:
    """The site of one version, into the branch gh-pages: ARGS='0.1 latest'. Only the workflow ``docs`` pushes."""
    make(session, ".venv/dev.stamp")
    session.run(str(PYTHON), "-m", "pip", "install", "--quiet", "mike==2.2.0", external=True)
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    command = (str(PYTHON.with_name("mike")), "deploy", "--update-aliases", *(session.posargs or ["dev"]))
    session.run(*command, external=True, env={"PATH": path, "NO_MKDOCS_2_WARNING": "1"})


@in_venv
def nightly(session: nox.Session) -> None:
    """What runs each night, one session after the other; .github/workflows runs them side by side."""
    for name in (
        "long", "older-tensorflow", "between", "newest-slow", "lowest", "laws", "differential",
        "faults", "optimized", "models",
    ):  # fmt: skip
        session.notify(name)
