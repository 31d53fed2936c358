"""A folder of ``jax.export`` programs by name, with a manifest of their checksums.

Programs are files ``NAME.jax_exported``, as in Orbax Export. Loading passes their bytes to ``jax.export.deserialize``,
which runs nothing; but that parser trusts its input, so a file is only parsed if its SHA-256 matches the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.export

from ...errors import ExportError
from ..formats.manifest import check_file_names, read_manifest, refused_as_plait_does, write_manifest
from ..formats.stablehlo_loader import ArtifactError, checked
from ..formats.whole_write import written_whole
from ..program.checks import check_some

KIND = ("plait-jax-exported-map", 2)
SUFFIX = ".jax_exported"


def save_jax_exported_map(
    dir_path: str | os.PathLike[str],
    jax_exported_map: Mapping[str, jax.export.Exported],
    *,
    vjp_order: int = 0,
    overwrite: bool = False,
) -> None:
    """Write programs to a new folder, atomically.

    Args:
        dir_path: the folder to create.
        jax_exported_map: programs by name, from ``JaxModule.obm_module_to_jax_exported_map``.
        vjp_order: how many times the programs can be differentiated after loading.
        overwrite: whether to replace an existing folder.

    Raises:
        ArgumentError: there are no programs, or a name is not a valid file name.
        ExportPathError: the folder cannot be written, or ``dir_path`` exists.
        ExportError: a program cannot be serialised.

    Example:
        >>> double = jax.export.export(jax.jit(lambda x: 2 * x))(jnp.ones(3))
        >>> plait.export.utils.save_jax_exported_map("doubling", {"double": double})
        >>> plait.export.utils.load_jax_exported_map("doubling")["double"].call(jnp.ones(3))
        Array([2., 2., 2.], dtype=float32)
    """
    advice = "save_jax_exported_map(path, module.obm_module_to_jax_exported_map(x))"
    check_some("there are no programs to save", "jax_exported_map", jax_exported_map, advice)
    message = "the name of a program is part of a file's name"
    check_file_names(message, "jax_exported_map", jax_exported_map, "rename the program: {'predict': exported}")
    with written_whole(dir_path, overwrite=overwrite) as draft:
        programs = {name: _serialized(name, exported, vjp_order) for name, exported in jax_exported_map.items()}
        draft.mkdir()
        for name, content in programs.items():
            (draft / (name + SUFFIX)).write_bytes(content)
        write_manifest(draft, KIND, {"programs": {name: {"file": name + SUFFIX} for name in programs}})


def load_jax_exported_map(dir_path: str | os.PathLike[str]) -> dict[str, jax.export.Exported]:
    """Load the programs of a folder by name. Nothing in the folder is run or unpickled.

    Raises:
        ExportError: it is not such a folder, or one of its files is missing, was changed, or is outside of it.
    """
    manifest = read_manifest(dir_path, KIND, "programs")
    with refused_as_plait_does(dir_path):
        return {name: _read(Path(dir_path), manifest, each["file"]) for name, each in manifest["programs"].items()}


def _serialized(name: str, exported: jax.export.Exported, vjp_order: int) -> bytes:
    try:
        return bytes(exported.serialize(vjp_order=vjp_order))
    except ValueError as error:
        raise ExportError(
            "a program cannot be serialised",
            at=name,
            found=str(error).splitlines()[0][:300],
            expected="parameters, inputs and outputs in dictionaries, lists, tuples and None",
            do="export plain trees: plait.to_pure_dict(state); or jax.export.register_pytree_node_serialization",
        ) from error


def _read(folder: Path, manifest: Any, file: str) -> jax.export.Exported:
    content = checked(folder, manifest, file)
    try:
        return jax.export.deserialize(bytearray(content))
    except Exception as error:  # JAX's parser may raise anything
        problem = f"JAX cannot read it: {type(error).__name__}: {error}".replace("\n", " ")[:300]
        raise ArtifactError(f"{problem}\n  at        {folder / file}") from error
