"""Every difference between JAX versions, and every use of JAX's private names.

``trace_state.value`` is a weak reference to this thread's current trace. Reading it costs about 30 ns and keeps no
trace alive; its identity distinguishes traces.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from typing import Any

import jax
from jax._src import core as _core
from jax._src.array import ArrayImpl as ArrayImpl
from jax._src.clusters import ClusterEnv as _ClusterEnv
from jax._src.lib import _jax as _jaxlib

if hasattr(_core, "trace_state"):
    trace_state = _core.trace_state
else:  # JAX versions that keep the trace in a thread-local object

    class _TraceState:
        __slots__ = ()

        @property
        def value(self) -> Any:
            return _core.trace_ctx.trace._weakref

    trace_state = _TraceState()

top_level_trace: Any = _core.eval_trace._weakref

Tracer: Any = _core.Tracer


def _key_array_type() -> Any:
    """The class of typed random keys; its module is private and has moved."""
    for place in ("jax._src.random.prng", "jax._src.prng"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(place).PRNGKeyArray
    return ArrayImpl


KeyArray: Any = _key_array_type()


def current_trace() -> Any:
    """A token of the current JAX trace: the same object for the same trace, a different one for another."""
    return trace_state.value


def describe_trace(token: Any) -> str:
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


def _debug_info(trace: Any) -> Any:
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


_PLAIT, _JAX = (os.path.dirname(os.path.abspath(place)) + os.sep for place in (__file__, str(jax.__file__)))

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


def transform_of(token: Any) -> str | None:
    """The name of plait's transform that makes traces of this kind; ``None`` if there is none."""
    trace = token() if token is not None else None
    if type(trace).__name__ == "DynamicJaxprTrace":
        return _TRANSFORMS.get(getattr(_debug_info(trace), "traced_for", "jit"), "jit")
    kinds = {"JVPTrace": "grad", "LinearizeTrace": "grad", "BatchTrace": "vmap", "ShardMapTrace": "shard_map"}
    return kinds.get(type(trace).__name__)


def promotes_nothing() -> bool:
    """Whether JAX's dtype promotion is strict."""
    return jax.config.jax_numpy_dtype_promotion == "strict"  # type: ignore[attr-defined]


def is_mutable_array(value: Any) -> bool:
    """Whether ``value`` is a JAX reference (``jax.new_ref``), or a tracer of one."""
    if isinstance(value, Tracer):
        return isinstance(value.aval, _AbstractRef)
    return isinstance(value, _Ref)


_hlo: Any
try:
    _hlo = importlib.import_module("jaxlib._hlo")
except ImportError:  # versions of jaxlib that keep it elsewhere
    _hlo = importlib.import_module("jaxlib.xla_client")

try:
    from jax._src.core import Ref as _Ref
    from jax._src.state.types import AbstractRef as _AbstractRef
except ImportError:  # JAX versions without references
    _AbstractRef = _Ref = ()  # type: ignore[assignment,misc]


def refuses_shared_donation() -> bool:
    """Whether the runtime safely rejects a buffer that is donated and also used as another argument.

    Verified for the CPU runtime; on others, buffers are compared before each call.
    """
    return jax.default_backend() == "cpu"


def memory_saving_options() -> dict[str, Any] | None:
    """Compiler options that compute independent values one at a time, as accelerators always do."""
    return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"} if jax.default_backend() == "cpu" else None


def in_cluster() -> bool:
    """Whether JAX detects the processes of a run itself: under Slurm, Open MPI, Kubernetes, on Cloud TPU."""
    kinds = _ClusterEnv._cluster_types
    return any(not kind.opt_in_only_method and kind.is_env_present() for kind in kinds)


def frame_locals(frame: Any) -> dict[str, Any]:
    """The local variables of a running function.

    Before Python 3.13 the frame keeps this dict, and every object in it, alive until the function returns, so it is
    cleared here. (A debugger writes that dict back into the function; then it is not cleared.)
    """
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.gettrace() is None:
        frame.f_locals.clear()
    return found


def new_ref(value: Any) -> Any:
    """A JAX reference that holds ``value``."""
    return jax.new_ref(value)


pmap: Any = getattr(jax, "pmap", None)  # ``None`` if JAX has removed it
jax_version: str = jax.__version__


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value inside ``shard_map`` may vary, if JAX tracks them."""
    aval = jax.typeof(value)
    if hasattr(aval, "manual_axis_type"):
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))


def jax_settings() -> dict[str, Any]:
    """JAX's current settings in this thread, by name, and the mesh."""
    found = {name: getattr(jax.config, name, None) for name in jax.config.values}
    mesh = jax.sharding.get_abstract_mesh()
    return {**found, "the mesh in force": None if mesh is None or mesh.empty else str(mesh)}


def program_text(stage: Any) -> str:
    """A lowered or compiled program in XLA's text form, with the names of operations."""
    if not isinstance(stage, jax.stages.Lowered):
        return stage.as_text()
    options = _hlo.HloPrintOptions()
    options.print_metadata = True
    program: Any = stage.compiler_ir("hlo")
    return program.get_hlo_module().to_string(options)


def program_costs(text: str) -> dict[str, float]:
    """XLA's cost analysis of a program in its text form, on the default device.

    Raises:
        ValueError: XLA does not take the text.
    """
    try:
        return _jaxlib.hlo_module_cost_analysis(jax.devices()[0].client, _hlo.hlo_module_from_text(text))
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(str(error)) from error


def buffers_of(compiled: Any) -> tuple[bytes, bytes] | None:
    """XLA's buffer assignment of a compiled program and the program itself, as protocol buffers, if it says."""
    buffers = getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", b"")
    modules = compiled.runtime_executable().hlo_modules() if buffers else []
    return (buffers, modules[0].as_serialized_hlo_module_proto()) if len(modules) == 1 else None
