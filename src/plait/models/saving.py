"""``save``: a model as its publisher would make it: config, weights under the hub's names, stop tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path as FilePath

import jax
import numpy as np

from ..checkpoint.safetensors import SHARD_BYTES, write_folder
from ..checkpoint.stored import StoredArray
from ..core.nodes.nodes import iter_variables
from ..errors import ArgumentError, CheckpointError
from ..util.files import given_path
from ..util.paths import describe_path, iter_layer_paths
from ..util.whole_writes import written_whole
from .family import PublishedModel
from .loading import CONFIG, GENERATION
from .weights import Weight, family_of, weights_of

Part = tuple[Weight, jax.Array, tuple[int, ...]]
"""A weight, the variable that has it, and its indices along the first axes of that."""


def save(model: PublishedModel, folder: str | os.PathLike[str], *, shard_bytes: int = SHARD_BYTES) -> FilePath:
    """Write a model that ``load`` made: ``config.json`` and safetensors, which ``transformers`` and ``load`` read.

    The config is the one that was read, with the dtype of the weights as they are now.

    Args:
        model: the model, with values, and without adapters and quantized weights.
        folder: is created.
        shard_bytes: the maximum size of a file of weights, in bytes.

    Returns:
        The folder.

    Raises:
        ArgumentError: a weight of the model has no value, or was replaced, as by ``plait.add_lora``.
        CheckpointError: the folder exists, or cannot be written.

    Example:
        >>> import json, pathlib
        >>> folder = pathlib.Path("tiny")
        >>> folder.mkdir()
        >>> config = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 4, "n_head": 2, "n_layer": 1}
        >>> _ = (folder / "config.json").write_text(json.dumps(config))
        >>> model = plait.models.load(folder, abstract=True, as_list=True)
        >>> _ = plait.select(model, plait.Param).map(lambda path, like: jnp.zeros(like.shape))
        >>> sorted(file.name for file in plait.models.save(model, "copy").iterdir())
        ['config.json', 'model.safetensors']
    """
    target = given_path(folder).absolute()
    config = model.config
    family = family_of(config, CONFIG)
    places = {
        layer: (variable.get_raw_value(), index)
        for path, variable in iter_variables(model)
        for layer, index in iter_layer_paths(path)
    }
    groups: dict[str, list[Part]] = {}
    for weight in weights_of(family, model.settings)[0]:
        value, index = places.get(weight.path, (None, ()))
        if not isinstance(value, jax.Array):
            raise ArgumentError(
                "a weight of the model cannot be saved",
                at=describe_path(weight.path),
                found="a shape without values" if isinstance(value, jax.ShapeDtypeStruct) else "no variable",
                expected="the variables that plait.models.load made, with values",
                do="plait.select(model, plait.LoRA).replace(lambda _, lora: lora.merge()), or plait.dequantize(model)",
            )
        groups.setdefault(weight.theirs, []).append((weight, value, index))
    arrays = {theirs: _array(parts) for theirs, parts in groups.items()}
    dtypes = {array.dtype.name for array in arrays.values()}
    config["dtype" if "torch_dtype" not in config else "torch_dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
    if os.path.lexists(target):
        raise CheckpointError(
            "the folder for the model exists already",
            at=str(target),
            found="a folder" if target.is_dir() else "a file",
            expected="a path that does not exist",
            do="choose another path, or delete the folder yourself",
        )
    with written_whole(target, "the model", CheckpointError, parents=True) as draft:
        draft.mkdir()
        write_folder(draft, arrays, shard_bytes, {"format": "pt"})
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if model.generation_json is not None:
            (draft / GENERATION).write_text(model.generation_json, encoding="utf-8")
    return target


def _array(parts: list[Part]) -> StoredArray:
    """The array of the files for some variables; it is put together when it is written."""
    parts.sort(key=lambda part: part[0].parts.index(part[0].name))
    weight, value, _ = parts[0]
    (shape,) = weight.piece.their_shapes([each.torch_shape for each, *_ in parts])

    def read() -> np.ndarray:
        values = [each.counterpart.piece.to_theirs(np.asarray(x[i] if i else x))[0] for each, x, i in parts]
        return weight.piece.to_theirs(*values)[0]

    return StoredArray(shape, np.dtype(value.dtype), read)
