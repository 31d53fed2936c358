"""Every difference between JAX versions, and every use of JAX's private names.

Variables need the first few names below. Every other name is looked up by the one feature that needs it
(``private``), so a version of JAX that has moved it breaks nothing else. ``docs/decisions/0030-private-names.md``
lists them all.

``trace_state.value`` is a weak reference to this thread's current trace. Reading it costs about 30 ns and keeps no
trace alive; its identity distinguishes traces.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
from jax.core import Tracer as _Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..errors import MissingDependencyError
from ..util.sentinels import NOTHING

# Private names --------------------------------------------------------------------------------------------------------

TESTED_WITH = ("0.10.2", "0.12.0.1")


def private(name: str, *places: str, feature: str, otherwise: Any = NOTHING) -> Any:
    """A private name of JAX, in the first of some modules that has it.

    Args:
        otherwise: what stands for it if it has moved, where the feature can do without.

    Raises:
        MissingDependencyError: it has moved; names it, and the feature that needs it.
    """
    for place in places:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(place), name)
    if otherwise is not NOTHING:
        return otherwise
    raise MissingDependencyError(
        f"{feature} needs a private name of JAX that this version does not have",
        found=f"JAX {jax.__version__}, without {name} in {' or '.join(places)}",
        expected=f"a version between {TESTED_WITH[0]} and {TESTED_WITH[1]}, with which plait was tested",
        do=f"pip install 'jax<={TESTED_WITH[1]}', or a newer plait",
    )


# Traces ---------------------------------------------------------------------------------------------------------------

# A token of a trace of JAX, which keeps none alive: the same object for the same trace.
Trace: TypeAlias = Any

_VARIABLES = "plait.Variable"
top_level_trace: Any = private("eval_trace", "jax._src.core", feature=_VARIABLES)._weakref
trace_state: Any = private("trace_state", "jax._src.core", feature=_VARIABLES)


def current_trace() -> Trace:
    """A token of the current JAX trace: the same object for the same trace, a different one for another."""
    return trace_state.value


def enclosing_traces() -> Iterator[Trace]:
    """The tokens of the current trace and of those around it, from the inside out."""
    token = trace_state.value
    trace = token() if token is not None else None
    while trace is not None:
        yield token
        trace = getattr(trace, "parent_trace", None)
        token = getattr(trace, "_weakref", None)


def is_staged() -> bool:
    """Whether operations are recorded for a program, and not run: under ``jit``, ``eval_shape`` and the like."""
    token = trace_state.value
    return type(token() if token is not None else None).__name__ == "DynamicJaxprTrace"


def is_within_staged() -> bool:
    """Whether operations are recorded for a program in the end, as by ``grad`` under ``jit``."""
    token = trace_state.value
    trace = token() if token is not None else None
    while trace is not None and type(trace).__name__ != "DynamicJaxprTrace":
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


_settings: Any = private("trace_context", "jax._src.config", feature="eager loops and branches", otherwise=object)


def trace_settings() -> Any:
    """The settings of this thread by which JAX keeps what it traced, as one hashable value. Without JAX's function, no
    two of these are equal, so nothing is kept."""
    return _settings()


def describe_trace(token: Trace) -> str:
    """Describe a trace, for errors: ``top level`` or the kind of the trace."""
    if token is top_level_trace:
        return "the top level (no JAX transform)"
    trace = token() if token is not None else None
    if trace is None:
        return "a JAX trace that has ended"
    kind, info = type(trace).__name__, _debug_info(trace)
    words = {
        "DynamicJaxprTrace": f"a function under {transform_of(token) or getattr(info, 'traced_for', 'a transform')}",
        "BatchTrace": "a function under vmap",
        "JVPTrace": "a function under forward differentiation (grad, jvp)",
        "LinearizeTrace": "a function under linearization (grad, vjp)",
    }
    return words.get(kind, f"a {kind}") + _describe_function(info)


def _debug_info(trace: object) -> Any:
    """JAX's information on the traced function: the transform, its name, file and line; ``None`` if unknown."""
    return getattr(getattr(trace, "frame", None), "debug_info", None)


def _describe_function(info: Any) -> str:
    """A suffix such as `` (step, train.py:12)``; file and line only for a user's function."""
    name, file, line = (getattr(info, f"func_{what}", None) for what in ("name", "filename", "lineno"))
    if not name or name == "<unknown>":
        return ""
    if not file or file.startswith((_PLAIT, _JAX)) or not os.path.exists(file):
        return f" ({name})"
    return f" ({name}, {os.path.basename(file)}:{line})"


_PLAIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(str(jax.__file__))) + os.sep

# JAX's name for the purpose of a trace → plait's transform that makes such traces.
_TRANSFORMS = {
    "scan": "scan",
    "fori_loop": "fori_loop",
    "while_body": "while_loop",
    "while_cond": "while_loop",
    "cond": "cond",
    "switch": "switch",
    "checkpoint / remat": "remat",
    "shard_map": "shard_map",
    "pmap": "pmap",
    "custom_vjp fun": "custom_vjp",
    "custom_jvp fun": "custom_jvp",
}


def transform_of(token: Trace) -> str | None:
    """The name of plait's transform that makes traces of this kind; ``None`` if there is none."""
    trace = token() if token is not None else None
    if type(trace).__name__ == "DynamicJaxprTrace":
        return _TRANSFORMS.get(getattr(_debug_info(trace), "traced_for", "jit"), "jit")
    kinds = {"JVPTrace": "grad", "LinearizeTrace": "grad", "BatchTrace": "vmap", "ShardMapTrace": "shard_map"}
    return kinds.get(type(trace).__name__)


def scopes_of(eqn: Any) -> list[tuple[str, bool]]:
    """The name stack of an equation, outermost first: each name, and whether it is that of a transform."""
    return [(each.name, type(each).__name__ == "Transform") for each in eqn.source_info.name_stack.stack]


# Arrays ---------------------------------------------------------------------------------------------------------------

ArrayImpl: Any = private("ArrayImpl", "jax._src.array", "jaxlib._jax", feature=_VARIABLES)
Tracer: Any = _Tracer

# Without it, arrays of typed random keys take the general path of ``jit``.
KeyArray: Any = private(
    "PRNGKeyArray", "jax._src.random.prng", "jax._src.prng", feature="jit of typed random keys", otherwise=ArrayImpl
)

# Without them, nothing is a reference.
_Ref: Any = private("Ref", "jax._src.core", feature="jax.new_ref", otherwise=())
_AbstractRef: Any = private("AbstractRef", "jax._src.state.types", feature="jax.new_ref", otherwise=())


def is_mutable_array(value: Any) -> bool:
    """Whether ``value`` is a JAX reference (``jax.new_ref``), or a tracer of one."""
    if type(value) is ArrayImpl:
        return False
    if isinstance(value, Tracer):
        return isinstance(value.aval, _AbstractRef)
    return isinstance(value, _Ref)


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value inside ``shard_map`` may vary, if JAX tracks them."""
    aval = jax.typeof(value)
    if hasattr(aval, "manual_axis_type"):
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))


def explicit_sharding(x: Any) -> NamedSharding | None:
    """The sharding in the type of an array; ``None`` unless axes of its mesh are explicit."""
    sharding = jax.typeof(x).sharding
    return sharding if AxisType.Explicit in sharding.mesh.axis_types else None


def on_all_devices(x: Any) -> Any:
    """The same, whole on each device if axes are explicit: JAX cannot tell how some operations divide it."""
    sharding = explicit_sharding(x)
    return x if sharding is None else jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def promotes_nothing() -> bool:
    """Whether JAX's dtype promotion is strict."""
    return jax.config.jax_numpy_dtype_promotion == "strict"  # type: ignore[attr-defined]


# Compiling and running ------------------------------------------------------------------------------------------------

pmap: Any = getattr(jax, "pmap", None)  # ``None`` if JAX has removed it
jax_version: str = jax.__version__

# XLA's options for a program on the CPU that computes one operation after the other, as eager calls do, and for such a
# program with products: XLA's older kernels, which JAX 0.10 can be told to use, compile these to wrong numbers.
SINGLE_OPERATIONS: dict[str, Any] = {"xla_disable_hlo_passes": "fusion", "xla_allow_excess_precision": False}
SINGLE_PRODUCTS = dict(SINGLE_OPERATIONS)
if tuple(map(int, jax_version.split(".")[:2])) < (0, 11):
    SINGLE_PRODUCTS["xla_cpu_use_fusion_emitters"] = True


def jaxlib_version() -> str:
    """The version of the compiled part of JAX."""
    return importlib.import_module("jaxlib.version").__version__


def memory_saving_options() -> dict[str, Any] | None:
    """Compiler options that compute independent values one at a time, as accelerators always do."""
    return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"} if jax.default_backend() == "cpu" else None


def refuses_shared_donation() -> bool:
    """Whether the runtime safely rejects a buffer that is donated and also used as another argument.

    Verified for CPUs and NVIDIA GPUs; on others, buffers are compared before each call.
    """
    return jax.default_backend() in ("cpu", "gpu")


def sharding_groups() -> Any:
    """The operation of Shardy that puts a value into a group whose members are sharded alike; ``None`` without it."""
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        return None
    return private("sharding_group", "jaxlib.mlir.dialects.sdy", feature="plait.jit on a mesh", otherwise=None)


@contextlib.contextmanager
def compiled_by_xla() -> Iterator[None]:
    """Inside the block, JAX's cache on disk is not used, by any thread."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    _use_disk(False)
    try:
        yield
    finally:
        _use_disk(before)


def _use_disk(is_used: bool) -> None:
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", is_used)
    compilation_cache.reset_cache()  # JAX asks whether it is used when it first compiles, and not again


def in_cluster() -> bool:
    """Whether JAX detects the processes of a run itself: under Slurm, Open MPI, Kubernetes, on Cloud TPU."""
    kinds = private("ClusterEnv", "jax._src.clusters", feature="plait.partitioning.connect_processes")._cluster_types
    return any(not kind.opt_in_only_method and kind.is_env_present() for kind in kinds)


def coordinator() -> Any:
    """The connection of this process to the one that coordinates a run of several."""
    return private("global_state", "jax._src.distributed", feature="a run of several processes").client


# Frames and tracebacks ------------------------------------------------------------------------------------------------

# CPython 3.12.0 and 3.12.1 start no thread once the main program has ended (gh-113964).
THREADS_CAN_END_A_PROGRAM = not (3, 12) <= sys.version_info < (3, 12, 2)


def frame_locals(frame: Any) -> dict[str, Any]:
    """The local variables of a running function.

    Before Python 3.13 the frame keeps this dict, and every object in it, alive until the function returns, so it is
    cleared here. (A debugger writes that dict back into the function; then it is not cleared.)
    """
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.gettrace() is None:
        frame.f_locals.clear()
    return found


# JAX leaves out plait's frames where it leaves out its own, as JAX_TRACEBACK_FILTERING says, and names the user's line
# for an operation.
_SHORT = "short tracebacks"
for _exclude in (
    private("register_exclusion", "jax._src.traceback_util", feature=_SHORT, otherwise=lambda folder: None),
    private("register_exclusion", "jax._src.source_info_util", feature=_SHORT, otherwise=lambda folder: None),
):
    _exclude(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def whole_tracebacks() -> Any:
    """Inside the block, tracebacks have all frames."""
    filtering = private(
        "traceback_filtering", "jax._src.config", feature=_SHORT, otherwise=lambda mode: contextlib.nullcontext()
    )
    return filtering("off")
