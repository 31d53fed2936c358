"""Adapters of the hub: ``save_adapter`` and ``load_adapter``, LoRA as PEFT names it for a family's modules.

A module of the hub may be several layers of the model, such as queries, keys and values in one. In its adapter these
have the same A, and B has a part for each; what the model trained for each alone becomes one pair of a higher rank.
"""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from ..convert.layouts import Piece
from ..convert.peft import Part, add_peft, parts_of, read_peft, write_peft
from ..core.rngs import Rngs
from .family import PublishedModel
from .weights import Weight, family_of, weights_of

_END = ".weight"


class Fused(NamedTuple):
    """A module of the hub.

    Args:
        piece: converts between its array and those of the layers.
        layers: the layers of the model that it is, in order.
        shapes: PyTorch's of their weights.
    """

    piece: Piece
    layers: list[str]
    shapes: list[tuple[int, ...]]

    def take_apart(self, b: np.ndarray) -> list[np.ndarray]:
        """The factor B of each layer."""
        return [b] if len(self.layers) == 1 else [*self.piece.to_ours(b.T if self._is_transposed else b)]

    def put_together(self, parts: list[np.ndarray]) -> np.ndarray:
        """The factor B of the module."""
        whole = self.piece.to_theirs(*parts)[0]
        return whole.T if self._is_transposed else whole

    @property
    def _is_transposed(self) -> bool:
        return self.piece.their_shapes(self.shapes)[0][0] != sum(shape[0] for shape in self.shapes)


def _modules(model: PublishedModel) -> dict[str, Fused]:
    groups: dict[str, list[Weight]] = {}
    for weight in weights_of(family_of(model.config, "config.json"), model.settings)[0]:
        if weight.theirs.endswith(_END) and len(weight.torch_shape) > 1:
            groups.setdefault(weight.theirs.removesuffix(_END), []).append(weight)
    found = {}
    for name, weights in groups.items():
        weights.sort(key=lambda weight: weight.parts.index(weight.name))
        layers = [weight.name.removesuffix(_END) for weight in weights]
        found[name] = Fused(weights[0].piece, layers, [weight.torch_shape for weight in weights])
    return found


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
    for name, module in _modules(model).items():
        own = [parts.pop(layer, None) for layer in module.layers]
        if len(own) == 1 and own[0] is not None:
            found[name] = own[0]
        elif any(own):
            found[name] = _fused(module, own)
    return write_peft(folder, {**found, **parts}, options)


def _fused(module: Fused, parts: list[Part | None]) -> Part:
    """One pair of factors, whose product is that of all."""
    there = {i: part for i, part in enumerate(parts) if part is not None}
    scale, columns = next(iter(there.values())).scale, []
    for i, part in there.items():
        b = part.arrays["lora_B.weight"]
        blocks = [np.zeros((shape[0], part.rank), b.dtype) for shape in module.shapes]
        blocks[i] = (b * (part.scale / scale)).astype(b.dtype)
        columns.append(module.put_together(blocks))
    a = np.concatenate([part.arrays["lora_A.weight"] for part in there.values()])
    b = np.concatenate(columns, axis=1)
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
    modules = _modules(model)
    found: list[tuple[str, str, Any]] = []
    for name, pair in pairs.items():
        module = modules.get(name)
        if module is None or len(pair["B"]) != sum(shape[0] for shape in module.shapes):
            found.append((name, module.layers[0] if module else name, pair))  # an error that names it
            continue
        bs = module.take_apart(pair["B"])
        found += [(name, layer, {"A": pair["A"], "B": b}) for layer, b in zip(module.layers, bs, strict=True)]
    add_peft(model, config, found, adapter, rngs)
