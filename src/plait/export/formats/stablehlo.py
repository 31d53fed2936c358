"""A StableHLO bundle: functions, their shared weights, and a manifest, for any program with JAX.

Loading it needs neither TensorFlow nor plait. Functions take the weights as arguments, so weights are stored once, in
files that other tools can read, and can be replaced without changing a function. Later versions of JAX can read a
function for at least six months (guaranteed by ``jax.export``).
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from ...errors import ExportError
from ..program.checks import check_known
from ..program.input_spec import InputSpec
from ..program.lowering import PLATFORMS, export_program
from ..program.program import SIGNATURE, Program, program_of, shared_weights
from ..program.weights import Function
from . import stablehlo_loader
from .descriptions import Description, Running, Tensor, size_of
from .manifest import read_manifest, refused_as_plait_does, write_manifest
from .options import WriteOptions
from .whole_write import written_whole

LOADER = "load.py"
SHARD_BYTES = 2**31  # the maximum size of a weights file; some systems and tools support no larger ones


def save_stablehlo(
    function: Function,
    params: Any,
    path: str | os.PathLike[str],
    *,
    input_spec: InputSpec | tuple[int | str, ...] | Sequence[InputSpec],
    platforms: Sequence[str] = PLATFORMS,
    overwrite: bool = False,
) -> None:
    """Write ``function(params, x)`` to a folder with StableHLO, weights and a manifest.

    The folder also has ``load.py``, which loads it without plait.

    Args:
        function: a pure JAX function of the parameters and the inputs.
        params: a pytree of arrays, stored under the names of their key paths.
        path: the folder to create.
        input_spec: shape, dtype and name of the input, or of each; dynamic sizes are names: ``("batch", 8, 8, 1)``.
        platforms: where the function can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        overwrite: whether to replace an existing export.

    Raises:
        ExportPathError: the folder cannot be written, or ``path`` exists.
        ExportError: a parameter cannot be stored.
    """
    program = program_of((params, function), input_spec)
    write({SIGNATURE: program}, path, WriteOptions(platforms, overwrite=overwrite))


def write(
    programs: Mapping[str, Program],
    path: str | os.PathLike[str],
    options: WriteOptions = WriteOptions(),  # noqa: B008  (it cannot be changed)
) -> None:
    """Write several functions that share their weights; the first one is the default when loading.

    Args:
        programs: programs, by the name of the signature.
        path: the folder to create.
        options: where the functions can run, and whether to replace an existing export.

    Raises:
        ArgumentError: two programs have different weights under one name.
    """
    with written_whole(path, overwrite=options.overwrite) as draft:
        exported = {name: export_program(program, options.platforms) for name, program in programs.items()}
        weights = shared_weights({name: program for name, (_, program) in exported.items()})
        for _, program in exported.values():
            weights |= {f"state:{name}": array for name, array in program.state.items()}
        draft.mkdir()
        for name, (function, _) in exported.items():
            (draft / f"{name}.jax_export").write_bytes(function.serialize())
        weight_files = _write_weights(weights, draft)
        (draft / LOADER).write_bytes(Path(stablehlo_loader.__file__).read_bytes())
        content = {
            "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
            "platforms": list(options.platforms),
            "signatures": {name: _signature(name, *pair) for name, pair in exported.items()},
            "weights": [_described(name, array.shape, array.dtype) for name, array in weights.items()],
            "weight_files": weight_files,
        }
        write_manifest(draft, content)


def load_stablehlo(path: str | os.PathLike[str], signature: str | None = None) -> Callable[..., Any]:
    """Load a function of the bundle at ``path``, with its weights: ``load_stablehlo(path)(x)`` is ``y``.

    Args:
        path: the folder.
        signature: the function to load; by default the first.

    Returns:
        A function of the inputs, in the order of the manifest or by name. It returns an array if the only output is
        ``y``, otherwise a dictionary. Its attribute ``signature`` is its entry in the manifest, and ``state`` has the
        initial values of the inputs that are state.

    Raises:
        ExportError: the folder is not a bundle, or one of its files is missing or was changed.
    """
    manifest = read_manifest(path)
    with refused_as_plait_does(path):
        return stablehlo_loader.load(os.path.expanduser(path), signature, manifest)


def _write_weights(weights: dict[str, np.ndarray], folder: Path) -> list[str]:
    from ...checkpoint.safetensors import write_shards  # imported on use, so importing this file is cheap

    for name, array in weights.items():
        message, dtypes = "safetensors files do not support this dtype", sorted(stablehlo_loader.DTYPES.values())
        advice = "store it in another dtype, and convert it in the function"
        check_known(message, [array.dtype.name], dtypes, advice, at=name, kind=ExportError)
    return list(write_shards(folder, weights, "weights", shard_bytes=SHARD_BYTES))


def _signature(name: str, exported: jax.export.Exported, program: Program) -> dict[str, Any]:
    """The manifest's entry of one function."""
    outputs = jax.tree_util.tree_unflatten(exported.out_tree, exported.out_avals)
    return {
        "file": f"{name}.jax_export",
        "calling_convention": exported.calling_convention_version,
        "inputs": described_inputs(program),
        "outputs": [_described(key, y.shape, y.dtype) for key, y in outputs.items()],
        "state": list(program.state),  # inputs that are also outputs; the initial value is the tensor "state:" + name
        "weights": list(program.weights),
    }


def described_inputs(program: Program) -> list[dict[str, Any]]:
    """Name, shape and dtype of each input, for the manifest."""
    return [_described(spec.name, spec.shape, np.dtype(spec.dtype)) for spec in program.inputs]


def _described(name: str, shape: Sequence[Any], dtype: np.dtype) -> dict[str, Any]:
    return {
        "name": name,
        "shape": [size if isinstance(size, int) else str(size) for size in shape],
        "dtype": dtype.name,
    }


def describe(place: Path) -> Description:
    """Describe a bundle from its manifest."""
    manifest = read_manifest(place)
    signatures = {
        name: (list(map(_from_json, chosen["inputs"])), list(map(_from_json, chosen["outputs"])))
        for name, chosen in manifest["signatures"].items()
    }
    weights = list(map(_from_json, manifest["weights"]))
    return Description("stablehlo", place, size_of(place), manifest["versions"], signatures, weights)


def _from_json(entry: dict[str, Any]) -> Tensor:
    return Tensor(entry["name"], entry["dtype"], tuple(entry["shape"]))


def run(path: str, signature: str | None) -> Running:
    """Run with JAX, and the loader in every bundle."""
    import runpy
    from pathlib import Path

    import numpy as np

    apply = runpy.run_path(str(Path(__file__).with_name("stablehlo_loader.py")))["load"](path, signature)

    def call(inputs: Any) -> Any:
        outputs = apply(**inputs)
        outputs = outputs if isinstance(outputs, dict) else {"y": outputs}
        return {key: np.asarray(y) for key, y in outputs.items()}

    return call, [entry["name"] for entry in apply.signature["inputs"]]
