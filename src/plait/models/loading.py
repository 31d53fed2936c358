"""``load``: a model from the folder of its config and weights, array by array, straight onto its devices."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ..checkpoint.safetensors import load_safetensors
from ..checkpoint.stored import StoredArray
from ..convert.conversion import error_of
from ..convert.report import ConversionReport, Converted, Mismatched, Missing
from ..core.functional.merge import merge
from ..core.nodes.nodes import iter_variables
from ..core.rngs import Rngs
from ..core.variables.filters import to_predicate
from ..core.variables.variables import Variable
from ..edit.quantized import (
    Quantized,
    check_bits,
    check_finite,
    check_inputs,
    codes_and_scale,
    quantized_rows,
    with_quantized,
)
from ..edit.selection import select, with_patterns
from ..errors import CheckpointError, CheckpointWarning, UnevenLayoutWarning
from ..nn.linear import Linear, LinearGeneral
from ..partitioning.axis_rules import Rules, get_logical_axis_rules, logical_axis_rules
from ..partitioning.recipes import rules_for
from ..partitioning.shardings import get_abstract_model
from ..typing import DTypeLike, FilterLiteral
from ..util.files import given_path, read_file
from ..util.notices import warn
from ..util.paths import Path, describe_path, iter_layer_paths
from ..util.schemas import MOST_JSON, parse_json
from .blocks import Remat
from .family import Config
from .shards import Shards
from .weights import Weight, family_of, weights_of

CONFIG, GENERATION = "config.json", "generation_config.json"


def load(
    folder: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    only: FilterLiteral = ...,
    quantize: int | None = None,
    group_size: int | None = None,
    abstract: bool = False,
    as_list: bool = False,
    remat: Remat = False,
    strict: bool = True,
) -> Any:
    """A published model, from the folder that its publisher made: ``config.json`` and safetensors.

    What comes back is an ordinary model of plait's layers. Weights are read one by one, straight into what each device
    holds of them.

    Args:
        folder: has ``config.json``, and ``model.safetensors`` or shards with their index; and may have
            ``generation_config.json``, whose stop tokens are then ``model.stop``.
        dtype: of the weights; ``None`` means the one that the config says, or else that of the files.
        mesh: the devices, over which weights are sharded; ``None`` means the current mesh, or one device without it.
        rules: logical axis rules; ``None`` means the current ones, or else ``plait.partitioning.rules_for(mesh)``.
        only: which variables are read: a path pattern or a filter. The others are left as shapes.
        quantize: 8 or 4: stores the kernels of the blocks in so many bits, as ``plait.quantize`` does.
        group_size: as of ``plait.quantize``.
        abstract: whether to leave all variables as shapes, and read the config alone.
        as_list: whether blocks are a list in place of a ``plait.Stack``, as they are if they do not repeat.
        remat: what the backward pass recomputes: as of ``plait.Stack``.
        strict: whether names in the files that the model does not have, and names of the model that are not there, are
            an error; without it they are a warning, and variables without values are left as shapes.

    Raises:
        ConversionError: plait does not have the family, or supports a value of the config; or the weights do not fit
            the model, in which case ``error.report`` has all names.
        CheckpointError: files are missing or damaged.
        ArgumentError: the axes of a weight do not fit the mesh, or its sizes the quantization.

    Warns:
        CheckpointWarning: with ``strict=False``, names in the files and in the model differ.

    Example:
        >>> import json, pathlib
        >>> folder = pathlib.Path("tiny")
        >>> folder.mkdir()
        >>> config = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 4, "n_head": 2, "eos_token_id": 8}
        >>> _ = (folder / "config.json").write_text(json.dumps(config))
        >>> model = plait.models.load(folder, abstract=True)
        >>> model.embed.embedding.shape, len(model.blocks), model.stop
        ((9, 4), 12, (8,))
    """
    place = given_path(folder)
    config_json = _text(place / CONFIG)
    generation_json = _text(place / GENERATION) if (place / GENERATION).exists() else None
    config = json.loads(config_json)
    family, reader = family_of(config, str(place / CONFIG)), Config(config, str(place / CONFIG))
    settings = family.read(reader)
    reader.finish()
    stored = {} if abstract else {_newer(name): array for name, array in load_safetensors(place).items()}
    settings = family.in_files(settings, stored) if stored else settings
    target = jnp.dtype(_dtype_of(reader, stored) if dtype is None else dtype)
    if quantize is not None:
        check_bits(quantize)
    rows: dict[Path, tuple[int, ...]] = {}

    def make() -> Any:
        model = family.make(settings, param_dtype=target, as_list=as_list, remat=remat, rngs=Rngs(0))
        if quantize is not None:
            _quantize(model, quantize, group_size, rows)
        model.config_json, model.generation_json = config_json, generation_json
        return model

    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    given = get_logical_axis_rules() if rules is None else rules
    has_prefix = any(name.startswith(family.prefix) for name in stored)
    with contextlib.nullcontext() if mesh.empty else logical_axis_rules(given or rules_for(mesh)):
        model = jax.eval_shape(make) if mesh.empty else merge(*get_abstract_model(make, mesh, graph=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnevenLayoutWarning)  # told above, with the paths
            weights, is_unused = weights_of(family, settings, has_prefix)
    if not abstract:
        found = _matched(stored, weights, is_unused, strict)
        encode = functools.partial(_encoded, rows=rows, bits=quantize, group_size=group_size)
        _fill(model, stored, found, to_predicate(with_patterns(only)), encode)
    return model


def _text(place: FilePath) -> str:
    """The text of a JSON file with an object."""
    try:
        content = read_file(place, MOST_JSON)
        parse_json(content, {str: Any})
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        found = "nothing"
    except (OSError, ValueError) as error:
        found = str(error)
    raise CheckpointError(
        "the folder has no model as its publisher makes it",
        at=str(place),
        found=found,
        expected=f"{CONFIG}, and {GENERATION} if there is one, each with a JSON object",
        do="download the whole folder of the model",
    )


def _newer(name: str) -> str:
    """A name as it is now: in the first checkpoints of BERT the weights of norms are called as in TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _dtype_of(config: Config, stored: Mapping[str, StoredArray]) -> Any:
    """The dtype that a config says, or else that of the first weight."""
    key = "dtype" if config.values.get("dtype") else "torch_dtype"
    said = config.values.get(key)
    if said is None:
        floats = (array.dtype for array in stored.values() if jnp.issubdtype(array.dtype, jnp.floating))
        return next(floats, jnp.float32)
    name = str(said).removeprefix("torch.")
    if name not in ("float64", "float32", "bfloat16", "float16"):
        raise config.error(key, "float32, bfloat16, float16 or float64; or pass dtype= to load")
    return name


def _quantize(model: Any, bits: int, group_size: int | None, rows: dict[Path, tuple[int, ...]]) -> None:
    """Replace the kernels of the blocks, and note which of their axes share a scale, by their paths in a list."""

    def replaced(path: Path, layer: Any) -> Any:
        check_inputs(path, layer, bits, group_size)
        names = layer.kernel.get_metadata()["out_sharding"]
        rows[*path, "kernel"] = own = quantized_rows(layer)
        new, made = with_quantized(layer, bits, group_size)
        # Axes that become one are divided as the first of them.
        row, column = names[made.order[0]], names[made.order[len(own)]]
        made.codes.set_metadata(out_sharding=(row, column))
        made.scale.set_metadata(out_sharding=(None, column))
        return new

    select(model, "blocks.**", (Linear, LinearGeneral)).replace(replaced)


def _matched(
    stored: Mapping[str, StoredArray],
    weights: list[Weight],
    is_unused: Callable[[str], bool],
    strict: bool,
) -> list[Weight]:
    """The weights that are in the files.

    Raises:
        ConversionError: names or shapes do not match.
    """
    missing, mismatched, converted, found = [], [], [], []
    for weight in weights:
        where = (describe_path(weight.path),), weight.counterpart.collection
        named = weight.counterpart.module, (weight.theirs,)
        array = stored.get(weight.theirs)
        if array is None:
            missing.append(Missing(*where, *named))
        elif (wrong := weight.misfit(array.shape, array.dtype)) is not None:
            mismatched.append(Mismatched(*where, *named, *wrong))
        else:
            converted.append(Converted(*where, (weight.theirs,), True))
            found.append(weight)
    left = sorted(stored.keys() - {weight.theirs for weight in weights})
    ignored = tuple(filter(is_unused, left))
    unexpected = tuple(name for name in left if name not in ignored)
    report = ConversionReport(tuple(converted), tuple(missing), tuple(mismatched), unexpected, ignored=ignored)
    if not report.is_complete:
        instead = "strict=False leaves" if strict else "given strict=False, plait leaves"
        error = error_of(report, f"download the model again; {instead} variables without values as shapes")
        if strict or mismatched:
            raise error
        warn(CheckpointWarning, str(error))
    return found


def _fill(model: Any, stored: Mapping[str, StoredArray], weights: list[Weight], is_wanted: Any, encode: Any) -> None:
    """Give the variables of an abstract model their values, one after the other; those that files lack stay shapes."""
    by_path = {weight.path: weight for weight in weights}
    groups: dict[Path, dict[str, Variable[Any]]] = {}
    for path, variable in iter_variables(model):
        place, name = (path[:-1], path[-1]) if isinstance(variable, Quantized) else (path, "")
        groups.setdefault(place, {})[name] = variable  # a quantized weight has two variables
    wanted = []
    for path, variables in groups.items():
        layers = [(index, by_path[layer]) for layer, index in iter_layer_paths(path) if layer in by_path]
        is_whole = len(layers) == sum(1 for _ in iter_layer_paths(path))
        if is_whole and is_wanted(path, next(iter(variables.values()))):
            wanted.append((variables, layers))
    done, total = 0, sum(len(layers) for _, layers in wanted)
    for variables, layers in wanted:
        shards = {name: Shards(variable.get_raw_value()) for name, variable in variables.items()}
        for index, weight in layers:
            values = weight.part(stored[weight.theirs].view())
            for name, array in ({"": values} if "" in shards else encode(weight.path, values)).items():
                shards[name].write(index, array)
            done += 1
            if sys.stderr.isatty():
                end = "\n" if done == total else ""
                print(f"\r{done / total:4.0%} of the weights", end=end, file=sys.stderr, flush=True)
        for name, each in shards.items():
            variables[name].set_raw_value(each.finish())


def _encoded(
    path: Path, values: np.ndarray, *, rows: Mapping[Path, tuple[int, ...]], bits: int | None, group_size: int | None
) -> dict[str, np.ndarray]:
    """The codes and scales of a quantized weight."""
    array = jnp.asarray(values)
    check_finite(path, array)
    codes, scale = _codes_and_scale(array, rows[path], bits, group_size)
    return {"codes": np.asarray(codes), "scale": np.asarray(scale)}


_codes_and_scale = jax.jit(codes_and_scale, static_argnums=(1, 2, 3))
