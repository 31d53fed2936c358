"""Converts a checkpoint of Flax NNX or Linen, or a PyTorch state dict, to the state of a plait model.

The model determines what to look for. Each of its variables has a counterpart in the other library, with a name and a
layout (``counterparts.py``, ``torch_layouts.py``, ``linen_layouts.py``). The checkpoint is read as arrays by name
(``sources.py``); a name map (``name_map.py``) connects the two (``matching.py``). Arrays are read, converted and
placed one at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..checkpoint.stored import StoredArray
from ..core.functional.update import update as update_graph
from ..core.graph.traversal import variables
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import RngCount, RngKey, Rngs, RngState
from ..core.states.state import State, from_flat_state, to_flat_state
from ..edit.stack_conversion import as_list, has_stacks
from ..errors import ConversionError
from ..nn.stacks.stack_records import at_stacked_paths
from ..typing import DTypeLike
from ..util.paths import Path, describe_path
from . import (
    linen_layouts as linen_layouts,
    torch_layouts as torch_layouts,  # registers its layouts
)
from .counterparts import Counterpart, check_model, counterparts
from .layouts import check_library
from .linen_scans import take_layers_apart
from .matching import BOXED, Matching
from .name_map import NameMap, Names
from .report import ConversionReport
from .sources import read_source, with_collections
from .stacked_moments import put_layers_together


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The result of ``convert_checkpoint``.

    Args:
        state: the converted variables, under their paths in the model.
        report: the outcome for every leaf of the model and of the checkpoint; ``print`` it.
    """

    state: State
    report: ConversionReport


def convert_checkpoint(
    source: Any,
    model: Any,
    *,
    layout: str,
    names: Names = None,
    dtype: DTypeLike | None = None,
    strict: bool = True,
    update: bool = False,
    rngs: Rngs | None = None,
) -> Conversion:
    """Convert a checkpoint of Flax NNX, Linen or PyTorch to a state of ``model``.

    It looks up variables by the other library's names: a variable of ``model.encoder.layers[0]`` is
    ``encoder.layers.0.weight`` in a state dict, ``encoder.layers.0.kernel`` in a checkpoint of NNX, and
    ``params.encoder.layers.0.kernel`` in a Linen tree. A Linen tree without collections is treated as ``params``. If
    names differ, map them with ``names``. Layers that Flax stacked along axis 0 with ``scan`` or ``vmap``, as
    ``encoder.layers.kernel``, fit a list and a ``Stack``.

    Args:
        source: the path of a safetensors file, of a folder of shards, of an Orbax folder, or of a Linen msgpack file;
            msgpack bytes; or a mapping of arrays: a torch state dict, Linen variables, a pure dict of an NNX state.
        model: the model, or a dict of several objects, such as a model and its optimizer. It does not change unless
            ``update`` is set, and may be abstract, as from ``plait.eval_shape``.
        layout: ``"torch"``, ``"linen"`` or ``"nnx"``: the library whose layout the source has.
        names: a map from names in the source to names of the model, both in the source's notation:
            ``{"transformer.h.*": "blocks.*", "lm_head": None}``. Patterns match at the beginning of a name; ``*``
            matches anything without a dot, ``**`` any number of components; ``None`` drops a name. Or a function
            from a name to a name.
        dtype: dtype of the floating-point variables; ``None`` keeps that of the source.
        strict: whether missing and unexpected leaves raise; otherwise they are only reported. Mismatched values always
            raise.
        update: whether to write the state to the model, if everything matches.
        rngs: the source from which ``update`` creates the random streams of an abstract model: each gets one key from
            the stream of the same name.

    Returns:
        The state and the report. Random streams, caches and sown values are in them if they are in a checkpoint of
        NNX; otherwise the model keeps its own.

    Raises:
        ConversionError: a leaf is missing, unexpected or mismatched, or ``update`` would leave random streams of an
            abstract model without values. The message names module, collection and leaf, and ``error.report`` has the
            full list. The model is unchanged.
        CheckpointError: there is nothing at the path, or it is damaged.
        ArgumentError: there is no such layout, or a name rule is invalid.
        ArgumentTypeError: the source is none of these, or ``model`` is a state or a variable.

    Example:
        >>> import numpy as np
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> weights = {"fc.weight": np.ones((3, 2), np.float32), "fc.bias": np.zeros(3, np.float32)}
        >>> done = plait.convert.convert_checkpoint(weights, model, layout="torch", names={"fc": ""}, update=True)
        >>> print(done.report)
        0 matched, 2 renamed, 0 missing, 0 unexpected
          renamed  kernel  params  <- fc.weight
          renamed  bias    params  <- fc.bias
        >>> model(jnp.ones((1, 2))).tolist()
        [[2.0, 2.0, 2.0]]
    """
    check_library(layout)
    check_model(model, "convert_checkpoint")
    arrays = read_source(source)
    if layout == "linen":
        arrays = with_collections(arrays)
    rename = NameMap(names)
    found, dropped = _renamed(arrays, rename)
    # A stack is converted as a list, as in other libraries.
    listed = as_list(model) if has_stacks(model) else model
    if layout != "torch":
        take_layers_apart(arrays, found, listed, has_collections=layout == "linen")
    looked_for, ignored = counterparts(layout, listed, found.keys() | {name.removesuffix(BOXED) for name in found})
    if layout != "torch":
        _take_out_of_boxes(found, looked_for)
    if layout == "nnx":
        put_layers_together(arrays, found, [name for each in looked_for for name in each.names])
    matching = Matching(arrays, found, None if dtype is None else jnp.dtype(dtype))
    for counterpart in looked_for:
        matching.add(counterpart)
    left = [(name, sources) for name, sources in found.items() if name not in matching.used]
    report = ConversionReport(
        converted=tuple(matching.converted),
        missing=tuple(matching.missing),
        mismatched=tuple(matching.mismatched),
        unexpected=tuple(source for name, sources in left if name not in ignored for source in sources),
        dropped=tuple(dropped),
        ignored=tuple(source for name, sources in left if name in ignored for source in sources),
        unused_rules=tuple(rename.unused),
    )
    if report.mismatched or (strict and not report.is_complete):
        raise error_of(report)
    leaves = matching.leaves if listed is model else _stacked(matching.leaves, model)
    state = from_flat_state(leaves)
    if update:
        streams = _streams(model, leaves, rngs, strict=strict)
        update_graph(model, from_flat_state({**leaves, **streams}))
    return Conversion(state, report)


def _stacked(leaves: Mapping[Path, Any], model: Any) -> dict[Path, Any]:
    """The leaves of a model with lists, at the paths of the same model with stacks."""
    own = dict(to_flat_state(variables(model, graph=True)))
    found = {}
    for path, leaf in at_stacked_paths(leaves, [path for path, _ in iter_graph_nodes(model)]).items():
        if path in own and path not in leaves:
            value, sharding = leaf.get_raw_value(), getattr(own[path].get_raw_value(), "sharding", None)
            leaf = own[path].copy(value if sharding is None else jax.device_put(value, sharding))
        found[path] = leaf
    return found


def _streams(model: Any, leaves: Mapping[Path, Any], rngs: Rngs | None, *, strict: bool) -> dict[Path, Any]:
    """Create values for the random streams of an abstract model, which other libraries' checkpoints lack.

    Raises:
        ConversionError: there is no ``rngs``, or other variables are left without values.
    """
    made: dict[Path, Any] = {}
    left: list[str] = []
    for path, variable in to_flat_state(variables(model, graph=True)):
        shape = variable.get_raw_value()
        if path in leaves or not isinstance(shape, jax.ShapeDtypeStruct):
            continue
        if isinstance(variable, RngKey) and rngs is not None:
            key = rngs[variable.get_metadata().get("tag", "default")]()
            made[path] = variable.copy(jax.random.split(key, shape.shape) if shape.shape else key)
        elif isinstance(variable, RngCount) and rngs is not None:
            made[path] = variable.copy(jnp.zeros(shape.shape, shape.dtype))
        elif strict or isinstance(variable, RngState):
            left.append(f"{describe_path(path)}: {type(variable).__name__}")
    if left:
        raise ConversionError(
            "some variables of the model would be left without values",
            at=_listed(left),
            found="an abstract model, and a checkpoint without them",
            expected="values for random streams and caches, which other libraries do not store",
            do="convert_checkpoint(..., update=True, rngs=plait.Rngs(0)) makes the streams; make caches "
            "after the conversion, or convert into a model with values",
        )
    return made


def _renamed(arrays: dict[str, StoredArray], rename: NameMap) -> tuple[dict[str, list[str]], list[str]]:
    """New names, each with its original names, and the dropped names."""
    found: dict[str, list[str]] = {}
    dropped = []
    for name in arrays:
        new = rename(name)
        if new is None:
            dropped.append(name)
        else:
            found.setdefault(new, []).append(name)
    return found, dropped


def _take_out_of_boxes(found: dict[str, list[str]], looked_for: list[Counterpart]) -> None:
    """NNX stores the value of a variable one level below its name, as ``kernel.value``, and so does Linen for boxes."""
    for name in [name for counterpart in looked_for for name in counterpart.names]:
        if name not in found and name + BOXED in found:
            found[name] = found.pop(name + BOXED)


def error_of(report: ConversionReport, advice: str | None = None) -> ConversionError:
    """The error that names module, collection and leaf of each mismatch.

    Args:
        advice: what to do; ``None`` is that of ``convert_checkpoint``.
    """
    places, found, expected = [], [], []
    for each in report.mismatched:
        places.append(f"{each.module}, {each.collection}: {', '.join(each.variables)}")
        found.append(each.found)
        expected.append(f"{each.expected} for {', '.join(each.variables)}")
    for each in report.missing:
        places.append(f"{each.module}, {each.collection}: {', '.join(each.variables)}")
        found.append(f"nothing under {', '.join(each.names)}")
        expected.append(", ".join(each.names))
    for name in report.unexpected:
        places.append(f"{name} of the checkpoint")
        found.append(f"{name}, which no variable of the model uses")
    if report.unexpected:
        expected.append("only names of the model")
    do = "rename with names={'their.name': 'our.name'}, drop with names={'their.name': None}"
    missing = [name for each in report.missing for name in each.names]
    theirs, ours = ({name.partition(".")[0] for name in names} for names in (report.unexpected, missing))
    if report.mismatched:
        do = "make the model with the sizes of the checkpoint, or pass the right layout and names"
    elif not theirs:
        do = "strict=False keeps what the model has where the checkpoint has nothing"
    elif len(theirs) == len(ours) == 1 and theirs != ours:
        do = f"rename with names={{{theirs.pop()!r}: {ours.pop()!r}}}"
    elif report.unused_rules:
        do += f"; these rules matched nothing: {', '.join(report.unused_rules)}"
    error = ConversionError(
        f"the checkpoint does not fit the model: {report.summary()}",
        at=_listed(places),
        found=_listed(found),
        expected=_listed(expected),
        do=f"{advice or do}; error.report has the full list",
    )
    error.report = report
    return error


def _listed(lines: list[str]) -> str:
    more = [f"… and {len(lines) - 8} more"] if len(lines) > 8 else []
    return "\n            ".join([*lines[:8], *more])
