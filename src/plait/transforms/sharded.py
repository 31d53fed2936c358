"""``shard_map`` for functions of modules: the function gets one device's shard of each array. (rule X26)"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ..core.graph.modes import Crossing
from ..core.transform import Transformation
from ..errors import ArgumentError
from ..typing import Tree, Value
from ..util.jax_versions import varying_axes
from .call.arguments import named_as_user_s
from .call.call import Call, check_function, curried, prefixed_call, prefixes_of
from .call.outcome import Address, Outcome
from .jit.shardings import axes_of, check_spec, check_specs, reshard_read_values

SHARD_MAP = Transformation(
    "shard_map",
    "{f}",
    "plait.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=P())(model, x)",
    mapping="plait.StateSharding({plait.Param: P('data'), ...: P()})",
)


@curried
def shard_map(
    f: Any = None,
    *,
    mesh: Any,
    in_specs: Tree,
    out_specs: Tree,
    axis_names: Set[Hashable] = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.shard_map`` for functions of modules.

    Inside, every variable holds this device's shard. Changes are returned with the variable's spec: a value written to
    a replicated variable must be the same on all devices, for example the result of ``jax.lax.pmean``.

    Args:
        f: the function; without it ``shard_map`` returns a decorator.
        mesh: the devices and the names of their axes; ``None`` means the mesh of ``jax.set_mesh``.
        in_specs: a prefix of the arguments whose leaves are partition specs, ``None`` (replicated), or for modules a
            ``StateSharding``; one spec for a module applies to all its state. Keyword arguments have the position from
            the signature.
        out_specs: the same for the output.
        axis_names: the mesh axes that are mapped; empty means all.
        check_vma: whether to check that values written with a replicated spec are the same on all devices.
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: a spec is longer than the rank or names an axis that the mesh does not have, the mesh axes do not
            divide a size, or a replicated value may differ between devices; the message names the path.
        ArgumentTypeError: a spec is not a partition spec.
        SharingError: a variable has two different specs.

    Example:
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> @plait.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
        ... def forward(model, x):
        ...     return model(x)
        >>> forward(model, jnp.ones((8, 2))).shape
        (8, 3)
    """
    crossing = Crossing(graph, graph_updates)
    check_function(f, SHARD_MAP)
    options = {"in_specs": in_specs, "out_specs": out_specs}
    check_specs(SHARD_MAP, prefixes_of(SHARD_MAP, options, crossing), lambda spec: isinstance(spec, PartitionSpec))

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = prefixed_call(SHARD_MAP, f, args, kwargs, options, crossing)
        lengths = (jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape
        sizes = {name: size for name, size in lengths.items() if not axis_names or name in axis_names}
        kinds: tuple[Any, ...] = call.ports.kinds
        specs = tuple(PartitionSpec() if kind is None else kind for kind in kinds)
        for label, spec, value in call.labelled():
            check_spec("shard_map: in_specs", label, value, spec or PartitionSpec(), sizes)
        for spec in specs:
            check_spec("shard_map: out_specs", lambda: "out_specs", (), spec, sizes)

        def body(inputs: Sequence[Sequence[Value]]) -> Tree:
            outputs, outcome = call.body(inputs)
            _check_outputs(call, outcome, outputs, specs, check_vma)
            return outputs, outcome

        sharded = jax.shard_map(
            named_as_user_s(body, f, call.body.names),
            mesh=mesh,
            in_specs=(specs,),
            out_specs=(specs, PartitionSpec()),
            axis_names=set(axis_names),
            check_vma=check_vma,
        )
        with call.in_scope():
            outputs, outcome = sharded(call.inputs)
        out = call.finish(outputs, outcome)
        values = [specs[port] for port in call.ports.values]
        laid = [jax.sharding.NamedSharding(mesh, s) for s in values] if isinstance(mesh, jax.sharding.Mesh) else values
        reshard_read_values(call.gathered, laid, outcome)
        return out

    return wrapper


def _check_outputs(
    call: Call, outcome: Outcome, outputs: Sequence[Sequence[Value]], specs: Sequence[Any], check_vma: bool
) -> None:
    """Check the outputs of one shard while paths are known."""

    def place_of(port: int, place: int) -> str:
        return outcome.describe(Address(port, place), call.body.structure, call.body.root_labels())

    for port, (spec, values) in enumerate(zip(specs, outputs, strict=True)):
        for place, value in enumerate(values):
            where = functools.partial(place_of, port, place)
            check_spec("shard_map: out_specs", where, value, spec, {})
            for leaf in jax.tree_util.tree_leaves(value):
                named = {name for entry in spec for name in axes_of(entry)}
                differing = varying_axes(leaf) - named if check_vma else frozenset[Any]()
                if differing:
                    axes = sorted(differing, key=str)
                    raise ArgumentError(
                        "shard_map: a value may differ between devices, but its spec declares it equal",
                        at=where(),
                        found=f"{spec}, but a value that depends on {', '.join(map(repr, axes))}",
                        expected="a spec that names the axis, or a value that is the same along it",
                        do=f"reduce it (jax.lax.pmean(value, {axes[0]!r})), name the axis in its spec, or pass "
                        "check_vma=False if it is the same on all devices",
                    )
