"""A StableHLO folder: the function, its weights and a manifest, for any program that has JAX.

It needs neither TensorFlow nor plait where it is loaded. The function takes the weights as an argument, so they are
stored once, in a file that other tools read, and may be replaced without touching the function. Later versions of JAX
read the function for at least six months (the promise of ``jax.export``).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.typing import ArrayLike

from ..errors import ExportError
from . import stablehlo_loader
from .input_spec import InputSpec, resolve_input_spec
from .lowering import PLATFORMS, lower
from .weights import Function, by_name, named_weights
from .whole_write import written_whole

LOADER = "load.py"


def save_stablehlo(
    function: Function,
    params: Any,
    path: str | os.PathLike[str],
    *,
    input_spec: InputSpec | tuple[int | str, ...],
    platforms: Sequence[str] = PLATFORMS,
    overwrite: bool = False,
) -> None:
    """Write ``function(params, x)`` as a folder of StableHLO, weights and a manifest.

    The folder also gets ``load.py``, which loads it without plait.

    Args:
        function: a pure JAX function of the parameters and one array, which returns one array.
        params: a pytree of arrays, stored under the names of their key paths.
        path: the folder to be made.
        input_spec: shape, dtype and name of ``x``; free sizes are names, as in ``("batch", 8, 8, 1)``.
        platforms: where the function can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        overwrite: whether to replace what is at ``path``.

    Raises:
        ExportPathError: the folder cannot be written, or ``path`` exists.
        ExportError: the function returns something other than one array, or a parameter cannot be stored.
    """
    from safetensors.numpy import save_file  # loaded here, so that naming this function costs nothing

    spec = resolve_input_spec(input_spec)
    weights = named_weights(params)
    with written_whole(path, overwrite=overwrite) as draft:
        exported = lower(by_name(function, params), weights, spec, platforms)
        draft.mkdir()
        (draft / stablehlo_loader.FUNCTION).write_bytes(exported.serialize())
        save_file(weights, draft / stablehlo_loader.WEIGHTS)
        (draft / LOADER).write_bytes(Path(stablehlo_loader.__file__).read_bytes())
        manifest = _manifest(draft, exported, weights, spec)
        (draft / stablehlo_loader.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def load_stablehlo(path: str | os.PathLike[str]) -> Callable[[ArrayLike], jax.Array]:
    """The function in the folder at ``path``, with its weights: ``load_stablehlo(path)(x)`` is ``y``.

    Raises:
        ExportError: the folder is not a StableHLO export, or one of its files is missing or was changed.
    """
    try:
        return stablehlo_loader.load(path)
    except stablehlo_loader.ArtifactError as error:
        raise ExportError(error.message, **error.parts) from error


def _manifest(
    folder: Path, exported: jax.export.Exported, weights: dict[str, np.ndarray], spec: InputSpec
) -> dict[str, Any]:
    (y,) = exported.out_avals
    return {
        "format": stablehlo_loader.FORMAT,
        "format_version": stablehlo_loader.FORMAT_VERSION,
        "jax_version": importlib.metadata.version("jax"),
        "platforms": list(exported.platforms),
        "signature": {
            "inputs": [_described(spec.name, spec.shape, np.dtype(spec.dtype))],
            "outputs": [_described("y", y.shape, y.dtype)],
        },
        "weights": [_described(name, array.shape, array.dtype) for name, array in weights.items()],
        "files": {file.name: _fingerprint(file) for file in sorted(folder.iterdir())},
    }


def _described(name: str, shape: Sequence[Any], dtype: np.dtype) -> dict[str, Any]:
    return {
        "name": name,
        "shape": [size if isinstance(size, int) else str(size) for size in shape],
        "dtype": dtype.name,
    }


def _fingerprint(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
