"""How every test runs: on eight CPU devices, with no silent promotion of dtypes or ranks."""

import os

# Before JAX is imported: it reads these once. Subprocesses of tests inherit them. The tests compile many small programs
# and run each a few times, so XLA is told not to spend its time on optimizing them.
FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
given = os.environ.get("XLA_FLAGS", "")
missing = [flag for flag in FLAGS if flag.partition("=")[0] not in given]
os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Iterator

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

SLOW_DATA = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, suppress_health_check=SLOW_DATA
)
hypothesis.settings.register_profile(
    "fuzz", max_examples=2_000, deadline=None, suppress_health_check=SLOW_DATA, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def users_promotion() -> Iterator[None]:
    """JAX's own defaults, as in a user's program: for documentation, and for libraries that need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
