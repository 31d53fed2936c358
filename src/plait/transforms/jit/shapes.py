"""``eval_shape``, ``make_jaxpr`` and ``checkify``: inspecting what a function would do, and checking it for errors.

(rules X23, X24, X25)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax

from ...core import hooks
from ...core.graph.modes import Crossing
from ...core.transform import Transformation
from ...typing import Tree, Value
from ...util.jax_versions import is_mutable_array
from ...util.paths import describe_path
from ..call.arguments import Structure, named_as_user_s, with_statics
from ..call.call import Call, check_function, curried
from ..call.enter_leave import TracedArguments

EVAL_SHAPE = Transformation("eval_shape", "plait.eval_shape({f}, {x})", copies_captured=True, abstract=True)
MAKE_JAXPR = Transformation("make_jaxpr", static="static_argnums={}", only_values=True)
CHECKIFY = Transformation("checkify", copies_captured=True)


R = TypeVar("R")


def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """The result of ``f(*args, **kwargs)``, with ``jax.ShapeDtypeStruct`` in place of arrays. Allocates nothing.

    Modules in the output are new ones, whose variables hold shapes. The arguments do not change, and may themselves
    hold shapes. If there is a mesh, a variable's shape has the sharding from its ``out_sharding`` and the current
    rules; the mesh is the variable's metadata ``mesh``, or else that of ``jax.set_mesh``.

    Args:
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: ``f`` is a bound method, returns a captured object, or creates a variable whose ``out_sharding``
            does not match its shape or the mesh; names the path.

    Example:
        >>> model = plait.eval_shape(lambda: plait.Linear(1_000_000, 1_000_000, rngs=plait.Rngs(0)))
        >>> model.kernel.value
        ShapeDtypeStruct(shape=(1000000, 1000000), dtype=float32)
        >>> x = jax.ShapeDtypeStruct((8, 1_000_000), jnp.float32)
        >>> plait.eval_shape(lambda model, x: model(x), model, x).shape
        (8, 1000000)
    """
    check_function(f, EVAL_SHAPE)
    return shapes_of_call(f, args, kwargs, Crossing(graph, graph_updates))


def shapes_of_call(f: Callable[..., Tree], args: tuple[Tree, ...], kwargs: dict[str, Tree], crossing: Crossing) -> Tree:
    """``eval_shape`` of a call."""
    call = Call(EVAL_SHAPE, f, args, kwargs, crossing=crossing)
    structures: list[Structure] = []

    def shapes(inputs: Sequence[Sequence[Value]]) -> Tree:
        structure, values, plain = call.body.output_of(inputs)
        structures.append(structure)
        return [value[...] if is_mutable_array(value) else value for value in values], plain

    named_as_user_s(shapes, f, call.body.names)
    values, plain = call.run(functools.partial(jax.eval_shape, shapes), call.inputs)
    built = TracedArguments(structures[-1], values, plain)
    _put_shardings(built)
    return built.tree


@curried
def make_jaxpr(
    f: Any = None,
    *,
    static_argnums: int | Sequence[int] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.make_jaxpr`` for functions of modules: a function from the arrays of the arguments to those of the output.

    Values that the function writes are not outputs. It always works as with ``graph_updates=False``; the argument
    exists for symmetry. The arguments do not change, and may hold shapes in place of arrays.

    Args:
        f: the function; without it ``make_jaxpr`` returns a decorator.
        static_argnums: positions of hashable arguments that are not arrays.
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: two arguments share a variable, or an argument's variable is returned.

    Example:
        >>> model = plait.Linear(2, 3, use_bias=False, rngs=plait.Rngs(0))
        >>> jaxpr = plait.make_jaxpr(lambda model, x: model(x))(model, jnp.ones((1, 2)))
        >>> [str(v.aval) for v in jaxpr.jaxpr.invars], jaxpr.jaxpr.eqns[0].primitive.name
        (['float32[2,3]', 'float32[1,2]'], 'dot_general')
    """
    check_function(f, MAKE_JAXPR)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = with_statics(MAKE_JAXPR, f, args, static_argnums)
        call = Call(MAKE_JAXPR, f, args, kwargs, crossing=Crossing(graph, graph_updates).values_only())
        structure = call.gathered.structure

        def with_values(structure: Structure, values: Iterable[Value], plain: Iterable[Value]) -> Tree:
            return structure.unflatten(lambda _, leaves: leaves, values, plain)

        def pure(tree: Tree) -> Tree:
            parts = list(zip(structure.graphdefs, structure.treedef.flatten_up_to(tree), strict=True))
            values = [value for graphdef, part in parts if graphdef is not None for value in part]
            plain = [part for graphdef, part in parts if graphdef is None]
            return with_values(*call.body.output_of(call.ports.grouped(values, plain)))

        named_as_user_s(pure, f, lambda: (with_values(structure, call.body.value_labels(), call.body.labels()[1]),))
        return call.run(jax.make_jaxpr(pure), with_values(*call.gathered.parts()))

    return wrapper


@curried
def checkify(f: Any = None, errors: Any = None, graph: bool | None = None, graph_updates: bool | None = None) -> Any:
    """``jax.experimental.checkify.checkify`` for functions of modules.

    Args:
        f: the function; without it ``checkify`` returns a decorator.
        errors: the checks to enable; ``None`` means ``checkify.user_checks``.
        graph, graph_updates: as in ``jit``.

    Returns:
        A function that returns ``(error, out)``. Changes to the arguments are made even if there is an error.

    Example:
        >>> from jax.experimental import checkify
        >>> def root(model):
        ...     checkify.check(jnp.all(model.x[...] >= 0), "negative")
        ...     return jnp.sqrt(model.x[...])
        >>> class Model(plait.Module):
        ...     def __init__(self, x):
        ...         self.x = plait.Param(x)
        >>> error, out = plait.checkify(root)(Model(jnp.array(-1.0)))
        >>> error.get()
        'negative (`check` failed)'
    """
    check_function(f, CHECKIFY)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from jax.experimental import checkify as jax_checkify  # importing it takes half as long as importing plait

        call = Call(CHECKIFY, f, args, kwargs, crossing=Crossing(graph, graph_updates))
        body = call.cached("checkify", lambda body: body)
        checked = jax_checkify.checkify(body, jax_checkify.user_checks if errors is None else errors)
        error, (outputs, outcome) = call.run(checked, call.inputs)
        return error, call.finish(outputs, outcome)

    return wrapper


def _put_shardings(built: TracedArguments) -> None:
    """Set the shardings of the shapes in variables from their annotations, if there is a mesh."""
    paths = functools.cache(built.structure.leaf_paths)
    placed: dict[int, Value] = {}
    for position, variable in enumerate(built.variables()):
        shape = None if variable is None else variable._cell.raw
        if variable is None or not isinstance(shape, jax.ShapeDtypeStruct) or shape.sharding is not None:
            continue

        def place(position: int = position) -> str:
            return describe_path(paths()[position][1])

        sharding = hooks.shape_sharding and hooks.shape_sharding(variable, shape.shape, place)
        if sharding is not None:
            placed[position] = shape.update(sharding=sharding)
    built.put(placed)
