"""What a program depends on besides its function and arguments: versions, devices, settings. (rule W2)"""

from __future__ import annotations

import decimal
import functools
import locale
import os
import platform
import sys
import time

import jax
import numpy as np

from .._compat import jax_settings, jax_version, jaxlib_version, physical_mesh
from ..core.objects.settings import settings_in_force
from .codes import digest
from .descriptions import Describer, device_token

# JAX settings for locations of files and for reports, which do not change programs.
_NO_MATTER = (
    "jax_compilation_cache", "jax_persistent_cache", "jax_enable_compilation_cache", "jax_raise_persistent_cache",
    "jax_log_", "jax_logging_level", "jax_explain_cache_misses", "jax_debug_log_modules", "jax_dump_ir",
    "jax_include_debug_info_in_dumps", "jax_traceback_filtering", "jax_pprint", "jax_tracer_error_num",
    "jax_captured_constants", "jax_transfer_guard", "jax_compiler_detailed_logging", "jax_check_proxy_envs",
    "jax_no_tracing", "jax_no_execution", "jax_check_tracer_leaks", "jax_send_traceback",
)  # fmt: skip
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED")
_FORMAT = "5"  # of stored programs; a different number invalidates all of them


def environment(backend: str | None, describer: Describer) -> dict[str, str]:
    """The current environment, by name.

    Raises:
        Unrecordable: a setting has a value that cannot be compared with another process.
    """
    devices = jax.devices(backend)
    found = {**_versions(), "format": _FORMAT}
    found["devices"] = digest("devices", map(device_token, devices))
    found["platform"] = devices[0].client.platform_version
    if devices[0].platform == "cpu":
        found["processor"] = _processor()
    found["processes"] = f"{jax.process_index()} of {jax.process_count()}"
    for name in _VARIABLES:
        found[name] = os.environ.get(name, "")
    for name, value in jax_settings().items():
        if not name.startswith(_NO_MATTER):
            found[name] = repr(value)
    for name, mesh in (("mesh of the block", physical_mesh()), ("mesh", jax.sharding.get_mesh())):
        found[name] = "none" if mesh is None or mesh.empty else describer.token(mesh, "the current mesh")
    for name, setting in settings_in_force.items():
        found[f"plait: {name}"] = describer.token(setting(), name)
    return found


def _versions() -> dict[str, str]:
    own = sys.modules[__name__.partition(".")[0]]
    return {
        "python": f"{sys.implementation.cache_tag} {sys.version}",
        "jax": jax_version,
        "jaxlib": jaxlib_version(),
        "numpy": np.__version__,
        "plait": str(getattr(own, "__version__", "")),
        "flags of python": f"{sys.flags.optimize} {sys.flags.dev_mode}",
        "numpy's errors": str(np.geterr()),
        "decimal": _decimal(),
        "locale": locale.setlocale(locale.LC_ALL),
        "time zone": f"{time.tzname} {time.timezone}",
    }


def _decimal() -> str:
    """The settings of decimal numbers, without the flags that earlier results have raised."""
    context = decimal.getcontext()
    return f"{context.prec} {context.rounding} {context.Emin} {context.Emax}"


@functools.cache
def _processor() -> str:
    """The instruction set of the processor: a program may use all of it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines: dict[str, str] = {}
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "flags", "Features", "CPU implementer", "CPU part"):
                    lines.setdefault(name.strip(), " ".join(sorted(value.split())))
    except OSError:
        lines = {}
    return digest("processor", [platform.machine(), platform.processor(), *(f"{k}={v}" for k, v in lines.items())])
