"""``y = load(path)(x)``: loads a StableHLO bundle with only JAX and NumPy. Each bundle has a copy as ``load.py``.

``manifest.json`` lists the other files: for each signature a ``jax.export`` artifact of
``(weights, inputs) -> outputs``, three dictionaries of arrays, and safetensors files (an 8-byte little-endian length,
that many bytes of JSON with each tensor's dtype, shape and byte range, then the bytes). Each file's SHA-256 is checked
before the file is used. State has the same name as input and output; ``apply.state`` has its initial values.
"""

import hashlib
import json
import math
from pathlib import Path

import jax.export
import numpy as np

FORMAT, FORMAT_VERSION, MANIFEST = "plait-stablehlo", 2, "manifest.json"
# The dtype names of the safetensors format, and NumPy's (with ml_dtypes, which JAX installs).
DTYPES = {f"{a}{bits}": f"{b}{bits}" for a, b in (("U", "uint"), ("I", "int")) for bits in (8, 16, 32, 64)}
DTYPES |= {"BOOL": "bool", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
DTYPES |= {"C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class ArtifactError(ValueError):
    """The folder is not a complete, unchanged bundle."""


def need(condition, what, place):
    """Raise an error about a file unless the condition holds; ``place`` is its path or name."""
    if not condition:
        raise ArtifactError(f"{what}\n  at        {place}\n  do        copy the folder again, or export again")


def load(path, signature=None, manifest=None):
    """Load one function of the bundle, by default its first, with its weights: ``load(path)(x)``, or inputs by name."""
    folder, manifest = Path(path), manifest or read_manifest(path)
    name = next(iter(manifest["signatures"])) if signature is None else signature
    need(name in manifest["signatures"], f"signatures {list(manifest['signatures'])}, but not {name!r}", folder)
    chosen, tensors = manifest["signatures"][name], {}
    states = {key: f"state:{key}" for key in chosen["state"]}
    used = {*chosen["weights"], *states.values()}
    for file in manifest.get("weight_files", ()):  # only one file is on the host at a time
        stored = read_safetensors(checked(folder, manifest, file), file)
        tensors.update({key: jax.device_put(stored[key]) for key in used & set(stored)})
    need(used <= set(tensors), f"no weights {used - set(tensors)}", folder)
    weights, file = {key: tensors[key] for key in chosen["weights"]}, chosen["file"]
    takes = {each["name"]: (*map(str, each["shape"]), each["dtype"]) for each in chosen["inputs"]}
    content = checked(folder, manifest, file)
    try:
        function = jax.export.deserialize(bytearray(content))
        (own, given), _ = jax.tree.unflatten(function.in_tree, function.in_avals)
    except Exception as error:  # JAX's reader raises errors of many kinds
        raise ArtifactError(f"{file} is damaged: {type(error).__name__}: {error}"[:300]) from error
    described = lambda arrays: {key: (*map(str, each.shape), each.dtype.name) for key, each in arrays.items()}
    need(described(own) == described(weights) and described(given) == takes, "a function of different arrays", file)
    call = jax.jit(function.call)

    def apply(*args, **inputs):
        if len(args) > len(takes) or sorted([*list(takes)[: len(args)], *inputs]) != sorted(takes):
            raise TypeError(f"{name} takes the inputs {list(takes)}, each once, but got {len(args)} and {list(inputs)}")
        inputs.update(zip(takes, args, strict=False))
        outputs = call(weights, inputs)
        return outputs["y"] if list(outputs) == ["y"] else outputs

    apply.__dict__.update(signature=chosen, state={key: tensors[each] for key, each in states.items()})
    return apply


def read_manifest(path):
    """The manifest as a dictionary; raises if it is not a complete manifest of this format and version."""
    place = Path(path) / MANIFEST
    try:
        manifest = json.loads(place.read_text(encoding="utf-8"))
        found = manifest["format"], manifest["format_version"]
        need(found == (FORMAT, FORMAT_VERSION), f"format {found}, not {(FORMAT, FORMAT_VERSION)}", place)
        need(manifest["signatures"], "a manifest without signatures", place)
        needed = [*manifest.get("weight_files", ()), *(chosen["file"] for chosen in manifest["signatures"].values())]
        for name in needed:  # no other file is opened
            need(is_file_name(name), f"{name!r} is not a file of this folder", place)
            need(len(bytes.fromhex(manifest["files"][name]["sha256"])) == 32, f"no SHA-256 of {name!r}", place)
        for chosen in manifest["signatures"].values():
            names = [entry["name"] for entry in (*chosen["inputs"], *chosen["outputs"])] + chosen["weights"]
            need(all(isinstance(name, str) for name in (*names, *chosen["state"])), "a non-string name", place)
    except DAMAGED as error:
        need(isinstance(error, ArtifactError), f"an incomplete manifest: {type(error).__name__}: {error}"[:300], place)
        raise
    return manifest


def is_file_name(text):
    """Whether a string is a valid file name inside a folder on any system, and not a path outside of it."""
    return isinstance(text, str) and text not in ("", ".", "..") and not set(text) & set("/\\:\0")


def checked(folder, manifest, name):
    """The bytes of one file; raises an error with the name of a missing or changed file."""
    try:
        content = np.fromfile(folder / name, np.uint8)  # what is read here is what is compared and used
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{name} cannot be read: {error}\n  at        {folder / name}") from error
    is_same = hashlib.sha256(content.data).hexdigest() == manifest["files"][name]["sha256"]
    need(is_same, f"{name} was changed", folder / name)
    return content


def read_safetensors(content, name):
    """The tensors of a safetensors file, by name, without a copy; raises if the header does not match the file."""
    try:
        length, tensors = int.from_bytes(bytes(content[:8]), "little"), {}
        data = content[8 + length :]
        for key, entry in json.loads(bytes(content[8 : 8 + length])).items():
            if key != "__metadata__":
                (start, end), dtype = entry["data_offsets"], jax.numpy.dtype(DTYPES[entry["dtype"]])
                need(0 <= start <= end <= len(data) and min(entry["shape"], default=0) >= 0, key, name)
                need(math.prod(entry["shape"]) * dtype.itemsize == end - start, key, name)
                tensors[key] = data[start:end].view(dtype).reshape(entry["shape"])
        return tensors
    except DAMAGED as error:
        raise ArtifactError(f"{name} is damaged: {type(error).__name__}: {error}"[:300]) from error
