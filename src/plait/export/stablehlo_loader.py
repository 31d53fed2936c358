"""Load a StableHLO folder without plait: needs JAX and NumPy, nothing else.

A copy of this file lies in each exported folder as ``load.py``, so that the folder explains and loads itself:

    from load import load
    apply = load("path/of/the/folder")
    y = apply(x)

The folder holds ``function.jax_export`` (a ``jax.export`` artifact: ``(weights, x) -> y``), ``weights.safetensors`` (an
8-byte little-endian length, that many bytes of JSON which say each tensor's dtype, shape and byte range, and then the
bytes) and ``manifest.json``. Every file's SHA-256 is compared with the manifest before the file is used.
"""

import hashlib
import json
from pathlib import Path

import jax
import jax.export
import numpy as np

FORMAT = "plait-stablehlo"
FORMAT_VERSION = 1
MANIFEST, FUNCTION, WEIGHTS = "manifest.json", "function.jax_export", "weights.safetensors"

# The names that the safetensors format gives to dtypes, and NumPy's (with ml_dtypes, which JAX brings).
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


class ArtifactError(ValueError):
    """A folder that is no whole, unchanged StableHLO export."""

    def __init__(self, message, **parts):
        super().__init__("\n".join([message, *(f"  {name:<9} {text}" for name, text in parts.items())]))
        self.message, self.parts = message, parts


def load(path):
    """Check the folder at ``path`` and return its function of one array, with the weights on the default device."""
    folder = Path(path)
    manifest = read_manifest(folder)
    checked = {name: _read_checked(folder, name, entry["sha256"]) for name, entry in manifest["files"].items()}
    weights = jax.device_put(read_safetensors(checked[WEIGHTS]))
    call = jax.jit(jax.export.deserialize(bytearray(checked[FUNCTION])).call)

    def apply(x):
        return call(weights, x)

    apply.__doc__ = f"{json.dumps(manifest['signature'])}, exported for {', '.join(manifest['platforms'])}."
    return apply


def read_manifest(folder):
    """The manifest as a dictionary; refuses other formats and versions that this file does not know."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            "the folder has no readable manifest",
            at=str(folder / MANIFEST),
            found=str(error),
            expected="a folder written by save_stablehlo",
            do="check the path, or export the model again",
        ) from error
    found = (manifest.get("format"), manifest.get("format_version"))
    if found != (FORMAT, FORMAT_VERSION) or not {FUNCTION, WEIGHTS} <= set(manifest.get("files", ())):
        raise ArtifactError(
            "the manifest is of a format that this loader does not read",
            at=str(folder / MANIFEST),
            found=f"format {found[0]!r}, version {found[1]!r}, files {sorted(manifest.get('files', ()))}",
            expected=f"format {FORMAT!r}, version {FORMAT_VERSION}, with {FUNCTION} and {WEIGHTS}",
            do="load it with the version of plait that wrote it, or export the model again",
        )
    return manifest


def _read_checked(folder, name, expected):
    """The bytes of one file of the folder; a missing or changed file is refused by name."""
    path = folder / name
    advice = {"do": "copy the folder again from where it was exported, or export the model again"}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{name} cannot be read", at=str(path), found=str(error), expected="a readable file", **advice
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ArtifactError(
            f"{name} is not the file that was exported",
            at=str(path),
            found=f"SHA-256 {found}",
            expected=f"SHA-256 {expected}, as manifest.json says",
            **advice,
        )
    return content


def read_safetensors(content):
    """The tensors of a safetensors file, by name."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    data = memoryview(content)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = jax.numpy.dtype(DTYPES[entry["dtype"]])
            tensors[name] = np.frombuffer(data[start:end], dtype).reshape(entry["shape"])
    return tensors
