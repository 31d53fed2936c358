"""Adapters of the hub: ``save_adapter`` and ``load_adapter``, LoRA as PEFT names it for a family's modules.

A module of the hub may be several layers of the model, such as queries, keys and values in one. In its adapter these
have the same A, and B has a part for each; what the model trained for each alone becomes one pair of a higher rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from ..convert.layouts import Piece
from ..convert.peft import Part, add_peft, parts_of, read_peft, write_peft
from ..core.rngs import Rngs
from ..errors import ArgumentError
from .family import PublishedModel
from .weights import Weight, family_of, weights_of

_END = ".weight"


def _modules(model: PublishedModel) -> dict[str, dict[str, Any]]:
    """The modules of the hub: the layers of the model that each is, with their rows of its factor B."""
    groups: dict[str, list[Weight]] = {}
    for weight in weights_of(family_of(model.config, "config.json"), model.settings)[0]:
        if weight.theirs.endswith(_END) and len(weight.torch_shape) > 1:
            groups.setdefault(weight.theirs.removesuffix(_END), []).append(weight)
    found = {}
    for name, weights in groups.items():
        weights.sort(key=lambda weight: weight.parts.index(weight.name))
        layers = [weight.name.removesuffix(_END) for weight in weights]
        rows = [slice(None)] if len(weights) == 1 else _rows(weights[0].piece, [each.torch_shape for each in weights])
        found[name] = dict(zip(layers, rows, strict=True))
    return found


def _rows(piece: Piece, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Where in the output of a fused module that of each layer is, from PyTorch's shapes of their weights."""
    whole = (sum(shape[0] for shape in shapes), shapes[0][1])
    numbers = np.broadcast_to(np.arange(whole[0])[:, None], whole)
    is_transposed = piece.their_shapes(shapes)[0] != whole
    return [part[:, 0] for part in piece.to_ours(numbers.T if is_transposed else numbers)]


def save_adapter(model: PublishedModel, folder: str | os.PathLike[str], *, adapter: str = "default") -> FilePath:
    """Write one adapter of a model, from ``plait.add_lora``, as PEFT does for the model of the hub.

    Args:
        model: from ``plait.models.load``.
        folder: is created. An adapter in it is replaced.
        adapter: the name of the adapter.

    Returns:
        The folder.

    Raises:
        ArgumentError: the model has no such adapter, or PEFT has no form for one of its layers.
        CheckpointError: the folder cannot be written.

    Example:
        >>> import json, pathlib
        >>> folder = pathlib.Path("tiny")
        >>> folder.mkdir()
        >>> config = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 4, "n_head": 2, "n_layer": 1}
        >>> _ = (folder / "config.json").write_text(json.dumps(config))
        >>> model = plait.models.load(folder, abstract=True)
        >>> _ = plait.select(model, plait.Param).map(lambda path, like: jnp.zeros(like.shape))
        >>> _ = plait.add_lora(plait.select(model, "blocks.*.attention.query"), 2, rngs=plait.Rngs(0))
        >>> written = plait.models.save_adapter(model, "adapter")
        >>> sorted(plait.checkpoint.load_safetensors(written / "adapter_model.safetensors"))[0]
        'base_model.model.transformer.h.0.attn.c_attn.lora_A.weight'
    """
    parts, options = parts_of(model, adapter)
    found = {}
    for name, layers in _modules(model).items():
        own = {layer: parts.pop(layer) for layer in layers if layer in parts}
        if own:
            found[name] = next(iter(own.values())) if len(layers) == 1 else _fused(layers, own)
    return write_peft(folder, {**found, **parts}, options)


def _fused(layers: Mapping[str, np.ndarray], parts: Mapping[str, Part]) -> Part:
    """One pair of factors, whose product is that of all."""
    a = np.concatenate([part.arrays["lora_A.weight"] for part in parts.values()])
    b, start = np.zeros((sum(map(len, layers.values())), len(a)), a.dtype), 0
    scale = next(iter(parts.values())).scale
    for layer, part in parts.items():
        b[layers[layer], start : start + part.rank] = part.arrays["lora_B.weight"] * (part.scale / scale)
        start += part.rank
    return Part({"lora_A.weight": a, "lora_B.weight": b}, len(a), scale)


def load_adapter(
    folder: str | os.PathLike[str], model: PublishedModel, *, adapter: str = "default", rngs: Rngs | None = None
) -> None:
    """Add an adapter of the hub to a model, in place, and make it the active one.

    Args:
        folder: has ``adapter_model.safetensors`` and ``adapter_config.json``.
        model: from ``plait.models.load``.
        adapter: its name in the model.
        rngs: the source of the stream of its dropout; ``None`` means ``plait.Rngs(0)``.

    Raises:
        CheckpointError: the folder has no adapter that plait can read. Nothing is changed then.
        ArgumentError: the model has no module of a name, one of another shape, or an adapter of this name.
    """
    config, pairs = read_peft(folder)
    modules, found = _modules(model), []
    for name, pair in pairs.items():
        layers = modules.get(name, {name: slice(None)})  # an unknown name is an error that lists the layers
        if len(layers) > 1 and len(pair["B"]) != (size := sum(map(len, layers.values()))):
            raise ArgumentError(
                "a factor of the adapter does not have the shape of the module",
                at=f"{name}.lora_B",
                found=f"shape {pair['B'].shape}",
                expected=f"{size} rows, for {', '.join(layers)}",
                do="pass a model with the sizes of the one that was fine-tuned",
            )
        found += [(name, layer, {"A": pair["A"], "B": pair["B"][rows]}) for layer, rows in layers.items()]
    add_peft(model, config, found, adapter, rngs)
