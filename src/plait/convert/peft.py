"""LoRA adapters in PEFT's files: ``adapter_model.safetensors`` and ``adapter_config.json``.

    layer                    A in the file                      B in the file
    Linear, LinearGeneral    lora_A.weight (r, in)              lora_B.weight (out, r)
    Conv                     lora_A.weight (r, in, *window)     lora_B.weight (out, r, 1, …)
    Embed                    lora_embedding_A (r, num)          lora_embedding_B (features, r)

Names are those of PyTorch's modules after ``base_model.model.``; ``alpha``, rank and dropout are in the configuration,
with ``rank_pattern`` and ``alpha_pattern`` for layers that differ. Axes of a ``LinearGeneral`` are flattened.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..checkpoint.safetensors import load_safetensors, save_safetensors
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import Rngs
from ..edit.adapters import add_lora
from ..edit.selection import select
from ..edit.stack_conversion import as_list, has_stacks
from ..errors import ArgumentError, CheckpointError
from ..nn.conv import Conv
from ..nn.embedding import Embed
from ..nn.linear import Linear, LinearGeneral
from ..nn.lora import LoRA
from ..nn.low_rank import axes_of, factor_shapes, form_of
from ..util.files import given_path, read_file
from ..util.paths import Path, describe_path
from ..util.schemas import MOST_JSON, Either, SchemaError, finite, parse_json
from ..util.whole_writes import put_before, written_whole
from ..util.words import describe_type, first_few
from .name_map import NameMap, Names

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
# A regular expression of the file may take for ever, so only those that match one fixed name are run.
_FIXED = re.compile(r"\^?(?:[^\\^$*+?{}\[\]|()]|\\[^\w\s])+\$?")


def _nothing(value: Any) -> bool:
    """Null, false or an empty list: plait has no such part of an adapter."""
    return value is None or value is False or value == []


def _rate(value: Any) -> bool:
    """A number from 0 to below 1, or null."""
    return value is None or (type(value) in (int, float) and 0 <= value < 1)


def _fixed_name(value: Any) -> bool:
    """The name of a layer, or its end, without regular expressions: write one line for each layer."""
    return isinstance(value, str) and _FIXED.fullmatch(value) is not None


_OTHER_KINDS = (
    "use_dora", "modules_to_save", "lora_bias", "layer_replication", "trainable_token_indices",
    "use_qalora", "alora_invocation_tokens", "arrow_config",
)  # fmt: skip
_MOST_PATTERNS = 10_000
_CONFIG = {
    "peft_type": "LORA",
    "bias?": Either(None, "none"),
    **{f"{name}?": _nothing for name in _OTHER_KINDS},
    "lora_alpha?": finite,
    "lora_dropout?": _rate,
    "use_rslora?": Either(bool, None),
    "fan_in_fan_out?": Either(bool, None),  # says how the layer below is stored
    "alpha_pattern?": Either(None, {_fixed_name: finite}),
}
Pair = dict[str, np.ndarray]
"""The factors A and B of a layer."""

_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")


def save_peft(
    path: str | os.PathLike[str], model: Any, /, *, adapter: str = "default", names: Names = None
) -> FilePath:
    """Write one adapter of a model as PEFT does.

    Args:
        path: a folder; it is created. An adapter in it is replaced.
        model: the model, with layers from ``plait.add_lora``.
        adapter: the name of the adapter.
        names: a map from the model's names to those of the PyTorch model, as in ``to_torch``.

    Returns:
        The folder.

    Raises:
        ArgumentError: the model has no such adapter, or PEFT has no form for one of its layers.
        CheckpointError: the folder cannot be written, or the disk is full; an adapter in it stays.

    Example:
        >>> model = plait.Dict(fc=plait.Linear(3, 4, rngs=plait.Rngs(0)))
        >>> _ = plait.add_lora(plait.select(model, "fc"), 2, alpha=4, rngs=plait.Rngs(1))
        >>> folder = plait.convert.save_peft("adapter", model)
        >>> sorted(plait.checkpoint.load_safetensors(folder / "adapter_model.safetensors"))
        ['base_model.model.fc.lora_A.weight', 'base_model.model.fc.lora_B.weight']
    """
    rename, (parts, options) = NameMap(names), parts_of(model, adapter)
    renamed = {rename(name): part for name, part in parts.items()}
    return write_peft(path, {name: part for name, part in renamed.items() if name is not None}, options)


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of an adapter for one layer.

    Args:
        arrays: PEFT's, by the end of their names.
        rank: of the factors.
        scale: what their product is multiplied by.
    """

    arrays: dict[str, np.ndarray]
    rank: int
    scale: float


def parts_of(model: Any, adapter: str) -> tuple[dict[str, Part], dict[str, Any]]:
    """The parts of an adapter by the names of the model's layers, and what PEFT's configuration says of them all.

    Raises:
        ArgumentError: the model has no such adapter, or PEFT has no form for one of its layers.
    """
    whole = as_list(model) if has_stacks(model) else model
    nodes = [(path, node) for path, node in iter_graph_nodes(whole) if isinstance(node, LoRA)]
    layers = [(_without_adapters(path), node) for path, node in nodes if node.adapter == adapter and node.innermost()]
    if not layers:
        raise ArgumentError(
            "the model has no adapter of this name",
            at=describe_type(model),
            found=f"the adapters {sorted({node.adapter for _, node in nodes})}",
            expected=f"{adapter!r}",
            do="pass the name that was given to plait.add_lora: adapter=...",
        )
    parts = {".".join(map(str, path)): Part(_to_peft(path, lora), lora.lora_rank, lora.scale) for path, lora in layers}
    dropout, is_stabilized = max(lora.dropout_rate for _, lora in layers), _is_stabilized(layers)
    return parts, {"lora_dropout": dropout, "use_rslora": is_stabilized}


def write_peft(path: str | os.PathLike[str], parts: Mapping[str, Part], options: Mapping[str, Any]) -> FilePath:
    """Write an adapter.

    Args:
        path: the folder.
        parts: by the names of PyTorch's modules.
        options: as ``parts_of`` returns them.
    """
    ranks = {name: part.rank for name, part in parts.items()}
    times = math.sqrt if options["use_rslora"] else float
    alphas = {name: part.scale * times(part.rank) for name, part in parts.items()}
    rank, alpha = (max(set(each.values()), key=[*each.values()].count) for each in (ranks, alphas))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "task_type": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        **options,
        "target_modules": sorted(ranks),
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
        "bias": "none",
        "fan_in_fan_out": False,
    }
    arrays = {f"{_PREFIX}{name}.{end}": array for name, part in parts.items() for end, array in part.arrays.items()}
    folder = given_path(path)
    with written_whole(folder / CONFIG, "the adapter", CheckpointError, parents=True) as draft:
        weights = save_safetensors(draft.with_name(WEIGHTS), arrays, metadata={"format": "pt"})
        draft.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        put_before(draft, folder / CONFIG, weights, folder / WEIGHTS)
    return folder


def load_peft(
    path: str | os.PathLike[str],
    model: Any,
    /,
    *,
    adapter: str = "default",
    names: Names = None,
    rngs: Rngs | None = None,
) -> None:
    """Add an adapter that PEFT wrote to a model, in place, and make it the active one.

    Args:
        path: a folder with ``adapter_model.safetensors`` and ``adapter_config.json``.
        model: the model, with or without other adapters.
        adapter: its name in the model.
        names: a map from the file's names, without ``base_model.model.``, to those of the model, as in
            ``convert_checkpoint``.
        rngs: the source of the stream of its dropout; ``None`` means ``plait.Rngs(0)``.

    PEFT takes the names in ``alpha_pattern`` for regular expressions. Here they are names of layers, or their ends;
    other expressions are errors, as a file's expression may take for ever.

    Raises:
        CheckpointError: the folder has no such files, they hold another kind of adapter, or values that PEFT does not
            write. In each case nothing is changed.
        ArgumentError: the model has no layer of a name, one of another shape, or one with an adapter of this name.

    Example:
        >>> model = plait.Dict(fc=plait.Linear(3, 4, rngs=plait.Rngs(0)))
        >>> _ = plait.add_lora(plait.select(model, "fc"), 2, alpha=4, rngs=plait.Rngs(1))
        >>> folder = plait.convert.save_peft("adapter", model)
        >>> again = plait.Dict(fc=plait.Linear(3, 4, rngs=plait.Rngs(0)))
        >>> plait.convert.load_peft(folder, again)
        >>> again.fc.scale, again.fc.lora_a.shape
        (2.0, (3, 2))
    """
    config, pairs = read_peft(path)
    rename = NameMap(names)
    renamed = [(name, rename(name), pair) for name, pair in pairs.items()]
    add_peft(model, config, [(name, ours, pair) for name, ours, pair in renamed if ours is not None], adapter, rngs)


def add_peft(
    model: Any, config: dict[str, Any], pairs: Iterable[tuple[str, str, Pair]], adapter: str, rngs: Rngs | None
) -> None:
    """Add an adapter that was read.

    Args:
        pairs: the name of a layer in the file, that in the model, and its factors.

    Raises:
        ArgumentError: as of ``load_peft``.
    """
    found: dict[Path, tuple[str, Pair]] = {}
    whole = as_list(model) if has_stacks(model) else model
    loras = [(path, node) for path, node in iter_graph_nodes(whole) if isinstance(node, LoRA)]
    taken = {_without_adapters(path) for path, node in loras if node.adapter == adapter}
    known = {_without_adapters(path): node for path, node in iter_graph_nodes(whole) if form_of(node) is not None}
    by_name = {".".join(map(str, where)): where for where in known}
    for name, ours, pair in pairs:
        if ours not in by_name:
            raise ArgumentError(
                "the model has no layer for a part of the adapter",
                at=name,
                found=f"no layer {ours!r}; the model's layers are {first_few(sorted(by_name), 4)}",
                expected="the name of a layer of the model",
                do="pass a map of names: names={'model.layers.*.self_attn.q_proj': 'blocks.*.attention.query', ...}",
            )
        where = by_name[ours]
        if where in taken:
            raise ArgumentError(
                "a layer has an adapter of this name already",
                at=describe_path(where),
                found=f"the adapter {adapter!r}",
                expected="a new name for each adapter of a layer",
                do=f"plait.convert.load_peft(folder, model, adapter={adapter + '2'!r})",
            )
        layer, rank = known[where], next(iter(pair["A"].shape), 0)
        shapes = factor_shapes(layer, rank)
        values = {each: _from_peft(layer, each, pair[each]) for each in "AB"}
        for each, shape in zip("AB", shapes, strict=True):
            own = values[each].shape
            matrix = (math.prod(shape[:-1]), rank) if each == "A" else (rank, math.prod(shape[1:]))
            if own not in (matrix, tuple(shape)) or not rank:
                raise ArgumentError(
                    "a factor of the adapter does not have the shape of the layer",
                    at=f"{name}.lora_{each}",
                    found=f"shape {pair[each].shape}",
                    expected=f"the factor {shape} of {describe_path(where)}, {describe_type(layer)}",
                    do="pass a model with the sizes of the one that was fine-tuned",
                )
        reshaped = {each: values[each].reshape(shape) for each, shape in zip("AB", shapes, strict=True)}
        found[where] = (name, reshaped)
    groups: dict[tuple[int, Any], list[Path]] = {}
    # As in PEFT, the name is that of the module or its end.
    alphas = [
        (re.compile(rf"(?:.*\.)?(?:{each})"), value) for each, value in (config.get("alpha_pattern") or {}).items()
    ]
    for where, (name, pair) in found.items():
        rank = pair["A"].shape[-1]
        own = (value for pattern, value in alphas if pattern.fullmatch(name))
        alpha = next(own, config.get("lora_alpha", rank))
        groups.setdefault((rank, alpha), []).append(where)
    options = {"rank_stabilized": bool(config.get("use_rslora")), "dropout_rate": config.get("lora_dropout") or 0.0}
    # All are selected before the first is changed: a selection of some layers of a stack is an error.
    selected = [
        (rank, alpha, select(model, lambda path, value, places=places: path in places))
        for (rank, alpha), places in groups.items()
    ]
    for rank, alpha, chosen in selected:
        add_lora(chosen, rank, alpha=alpha, adapter=adapter, rngs=rngs or Rngs(0), **options)
    for where, (_, pair) in found.items():
        lora = _adapter_at(model, where, adapter)
        for each, factor in (("A", lora.lora_a), ("B", lora.lora_b)):
            factor.set_value(jnp.asarray(pair[each]).astype(factor.get_value().dtype))


def _without_adapters(path: Path) -> Path:
    return tuple(key for key in path if key != "base_module")


def _is_stabilized(layers: Any) -> bool:
    return all(lora.rank_stabilized and lora.alpha is not None for _, lora in layers)


def _adapter_at(model: Any, where: Path, adapter: str) -> Any:
    """The LoRA of an adapter around the layer at a path of the list."""
    for key in where:
        model = model[key] if not isinstance(key, str) or not hasattr(model, key) else getattr(model, key)
    while model.adapter != adapter:
        model = model.base_module
    return model


def _to_peft(where: Path, lora: LoRA) -> dict[str, np.ndarray]:
    layer, a, b = lora.innermost(), np.asarray(lora.lora_a.get_value()), np.asarray(lora.lora_b.get_value())
    rank = a.shape[-1]
    if isinstance(layer, Embed):
        return {"lora_embedding_A": a.T.copy(), "lora_embedding_B": b.T.copy()}
    if isinstance(layer, Conv):
        window = len(layer.kernel_size)
        a = a.transpose(window + 1, window, *range(window))
        b = b.T.reshape(b.shape[1], rank, *(1,) * window)
    elif isinstance(layer, (Linear, LinearGeneral)) and "b" not in axes_of(layer):
        a, b = a.reshape(-1, rank).T, b.reshape(rank, -1).T
    else:
        raise ArgumentError(
            "PEFT has no form for the adapter of this layer",
            at=describe_path(where),
            found=describe_type(layer),
            expected="a Linear, a LinearGeneral without batch axes, a Conv or an Embed",
            do="save it with plait.checkpoint.save(path, plait.variables(model, plait.LoRAParam))",
        )
    return {"lora_A.weight": a.copy(), "lora_B.weight": b.copy()}


def _from_peft(layer: Any, factor: str, value: np.ndarray) -> np.ndarray:
    if isinstance(layer, Conv) and factor == "A" and value.ndim > 2:
        return value.transpose(*range(2, value.ndim), 1, 0)
    is_window_of_one = value.ndim > 2 and set(value.shape[2:]) == {1}
    return value.reshape(value.shape[:2]).T if factor == "B" and is_window_of_one else value.T


def read_peft(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Pair]]:
    """The configuration of an adapter, and the factors by the names in its file.

    Raises:
        CheckpointError: the folder has no adapter that plait can read.
    """
    folder = given_path(path)
    try:
        config = parse_json(read_file(folder / CONFIG, MOST_JSON), _CONFIG)
    except (OSError, SchemaError) as error:
        raise _no_adapter(folder, f"an {CONFIG} with {error}") from error
    if len(config.get("alpha_pattern") or ()) > _MOST_PATTERNS:
        raise _no_adapter(folder, f"an {CONFIG} with more than {_MOST_PATTERNS:,} names in alpha_pattern")
    factors: dict[str, Pair] = {}
    for key, array in load_safetensors(folder / WEIGHTS).items():
        parts = _KEY.fullmatch(key)
        if parts is None:
            raise _no_adapter(folder, f"an array {key!r}")
        pair = factors.setdefault(parts[1], {})
        if parts[3] in pair or not jnp.issubdtype(array.dtype, jnp.floating):
            raise _no_adapter(folder, f"{key!r} of {array.dtype.name}, a factor that is there twice or not of floats")
        pair[parts[3]] = array.read()
    for name, pair in factors.items():
        if pair.keys() != {"A", "B"}:
            raise _no_adapter(folder, f"only lora_{next(iter(pair))} of {name!r}")
    return config, factors


def _no_adapter(folder: FilePath, found: str) -> CheckpointError:
    return CheckpointError(
        "the folder has no LoRA adapter that plait can read",
        at=str(folder),
        found=found,
        expected=f"{WEIGHTS}, and {CONFIG} with peft_type LORA, without " + ", ".join(_OTHER_KINDS),
        do="save the adapter with PEFT's save_pretrained, or merge it there and use plait.convert.convert_checkpoint",
    )
