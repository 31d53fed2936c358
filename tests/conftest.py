"""How every test runs: on eight CPU devices, with no silent promotion of dtypes or ranks."""

import os
import shutil
import tempfile
from importlib.metadata import version

from tests.environment import leave_out_settings

leave_out_settings()

# Before JAX is imported: it reads these once. Workers and subprocesses of tests inherit them. The tests compile many
# small programs and run each a few times, so XLA is told not to spend its time on optimizing them, and a program that
# one process of the run has compiled is not compiled by another. PLAIT_TESTS_OPTIMIZE=1 leaves both as users have them.
DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
JAXLIB = tuple(int(part) for part in version("jaxlib").split(".")[:2])
if JAXLIB < (0, 11):  # XLA ends the process at a flag that it does not know, and later releases do not know this one
    QUICK.append("--xla_cpu_use_fusion_emitters=false")
OPTIMIZE = os.environ.get("PLAIT_TESTS_OPTIMIZE", "0") != "0"
given = os.environ.get("XLA_FLAGS", "")
wanted = [DEVICES] if OPTIMIZE else [DEVICES, *QUICK]
missing = [flag for flag in wanted if flag.partition("=")[0] not in given]
os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow loads Keras, which loads scikit-learn, which takes as long as TensorFlow itself. Nothing here uses Keras;
# where its predecessor is asked for and not installed, TensorFlow goes without.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
COMPILED = None if OPTIMIZE or "JAX_COMPILATION_CACHE_DIR" in os.environ else tempfile.mkdtemp(prefix="plait-compiled-")
if COMPILED:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
if not OPTIMIZE:
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import gc
from collections.abc import Generator, Iterator

import hypothesis
import jax
import pytest

from tests.lowering import share_contexts
from tests.random_numbers import share_programs
from tests.sampling import leave_most_to_long, leave_two_thirds_to_long
from tests.standing import StandingProcesses

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
if not OPTIMIZE:
    share_contexts()
    share_programs()

# Tracing makes many objects that stay alive; collecting after every 700 of them would free next to nothing.
gc.set_threshold(50_000, 20, 20)

SLOW_DATA = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, suppress_health_check=SLOW_DATA
)
hypothesis.settings.register_profile(
    "fuzz", max_examples=2_000, deadline=None, suppress_health_check=SLOW_DATA, print_blob=True
)
hypothesis.settings.register_profile(
    "nightly", max_examples=5_000, deadline=None, suppress_health_check=SLOW_DATA, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MEMORY = 4 * 2**30  # bytes that a worker may come to
PROCESS_LIMIT = 600  # seconds


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: a worker for each core that this process may use, as far as the memory goes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return cores
    return max(1, min(cores, memory // MEMORY))


# Folders and files whose tests load TensorFlow, PyTorch or ONNX. The first worker begins with the first half of all
# tests, so that the others need not load them too.
HEAVY = ("architecture/test_public_names", "inspect/compare", "convert", "examples", "export", "docs", "cli")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of the tests; and a test that starts processes is given up when one hangs, but with ``--timeout=0``."""
    leave_two_thirds_to_long(items)
    leave_most_to_long(items)
    items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(HEAVY))
    for item in items if config.getoption("timeout", None) != 0 else ():
        if hasattr(getattr(item, "module", None), "subprocess") or "runners" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(PROCESS_LIMIT))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and listed stays, so it is not searched for garbage, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    if COMPILED:  # in the process that made it
        shutil.rmtree(COMPILED, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """What a file of tests leaves behind, compiled functions above all, is not searched for garbage again and again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def checking_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI runs all tests in the checking mode of ``jit``, but for those where it would change what they show."""
    if os.environ.get("PLAIT_CHECK_DISPATCH", "0") not in ("", "0") and request.node.get_closest_marker("unchecked"):
        monkeypatch.setattr("plait.transforms.jit.function.CHECK_DISPATCH", False)


@pytest.fixture(scope="session")
def standing_processes() -> Iterator[StandingProcesses]:
    processes = StandingProcesses()
    yield processes
    processes.end()


@pytest.fixture
def standing_runners(standing_processes: StandingProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported files are run by processes that have imported their runtimes already."""
    from plait.export.proof import apart

    monkeypatch.setattr(apart, "subprocess", standing_processes)


@pytest.fixture
def users_promotion() -> Iterator[None]:
    """JAX's own defaults, as in a user's program: for documentation, and for libraries that need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
