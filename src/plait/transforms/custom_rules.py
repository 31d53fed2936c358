"""``custom_vjp`` and ``custom_jvp``: functions of modules with a custom derivative rule. (rules X16, U31)"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import jax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from ..core.graph.modes import Crossing
from ..core.transform import Transformation
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import Tree, Value
from ..util.words import describe_type
from .call.arguments import gather, named_as_user_s
from .call.body import RuledFunction
from .call.call import check_function, curried
from .call.enter_leave import TracedArguments, rebuild
from .rule_calls import RuleCall
from .selections import DiffState, check_argnums
from .tangent_trees import flatten_like, zero_tangent

CUSTOM_VJP, CUSTOM_JVP = (
    Transformation(
        name,
        of_model="f(model, x), whose rule then gets it, too",
        static="nondiff_argnums=({},)",
        only_values=name == "custom_jvp",
    )
    for name in ("custom_vjp", "custom_jvp")
)


@curried
def custom_vjp(
    fun: Any = None,
    *,
    nondiff_argnums: Sequence[int | DiffState] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.custom_vjp`` for functions of modules: a function with a gradient rule, set with ``defvjp``.

    Args:
        fun: the function; without it ``custom_vjp`` returns a decorator. As a decorator of a method, it treats the
            module as an argument; call ``defvjp`` on the method of the class.
        nondiff_argnums: arguments without a derivative: integers for plain arguments, which the rule gets first. For a
            module, a ``DiffState`` that selects its leaves that *are* differentiable.
        graph, graph_updates: as in ``jit``.

    The rule is ``fwd(*args) -> (out, residuals)`` and ``bwd``, which gets the residuals (modules may be among them)
    and the cotangents, and returns a tuple with one tangent for each differentiable argument, or ``None`` for zero.
    Writes to modules in ``bwd`` are lost. Changes made by ``fun`` and ``fwd`` reach the caller's objects.

    - By default ``bwd(residuals, (input_updates_g, out_g))``: ``input_updates_g`` has, for each differentiable
      argument, a ``State`` in place of each module, with the cotangents of the values that variables have after the
      call (zero for those that were not written); ``None`` for anything else. The tangent of a module is such a
      ``State``, so rules often start with a copy of it.
    - With ``graph_updates=False``: ``bwd(residuals, out_g)``. The tangent of a module is a module. A keyword argument
      ``updates_g`` of ``bwd`` gets the arguments with the cotangents of written variables, and ``None`` elsewhere.

    Raises:
        ArgumentError: the function is called before ``defvjp``, or differentiated with respect to an argument in
            ``nondiff_argnums``, or a tangent does not have the leaves of its argument.
        ArgumentTypeError: an integer in ``nondiff_argnums`` refers to a module, or a rule does not return a tuple.

    Example:
        >>> @plait.custom_vjp
        ... def f(model, x):
        ...     return model.bias.sum() * x
        >>> def fwd(model, x):
        ...     return f(model, x), x
        >>> def bwd(x, g):
        ...     (model_g, _), out_g = g
        ...     model_g["bias"][...] = jnp.clip(out_g * x, -1.0, 1.0) * jnp.ones(3)
        ...     return model_g, None
        >>> f.defvjp(fwd, bwd)
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.grad(f)(model, 5.0)["bias"][...].tolist()
        [1.0, 1.0, 1.0]
    """
    return CustomVjp(fun, tuple(nondiff_argnums), Crossing(graph, graph_updates))


@curried
def custom_jvp(
    fun: Any = None,
    /,
    *,
    nondiff_argnums: Sequence[int] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.custom_jvp`` for functions of modules: a function with a derivative rule, set with ``defjvp``.

    The rule is ``jvp(*nondiff, primals, tangents) -> (out, tangent)``, with tuples of the differentiable arguments and
    their tangents; the tangent of a module is a module. It carries only values, as ``plait.jvp`` does. If the rule
    writes a variable, its tangent is the value that the rule writes to the same variable of the tangent module, or
    zero.

    Args:
        fun: the function; without it ``custom_jvp`` returns a decorator.
        nondiff_argnums: positions of arguments without a derivative, which the rule gets first.
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: the function is called before ``defjvp``, or differentiated by what ``nondiff_argnums`` leaves
            out, or a variable is shared.

    Example:
        >>> @plait.custom_jvp
        ... def f(scale, x):
        ...     return jnp.sin(x) * scale[...]
        >>> def jvp(primals, tangents):
        ...     (scale, x), (_, x_tangent) = primals, tangents
        ...     return f(scale, x), 100 * x_tangent
        >>> f.defjvp(jvp)
        >>> float(jax.grad(lambda x: f(plait.Param(2.0), x))(0.5))
        100.0
    """
    return CustomJvp(fun, tuple(nondiff_argnums), Crossing(graph, graph_updates).values_only())


class _Custom(RuledFunction):
    """A function with a rule."""

    _name: Transformation
    _rule: Transformation
    _definer: str
    _rule_names: str

    def __init__(self, fun: Any, nondiff_argnums: tuple[int | DiffState, ...], crossing: Crossing) -> None:
        check_function(fun, self._name)
        check_argnums(self._name, "nondiff_argnums", nondiff_argnums, updates=crossing.updates)
        functools.update_wrapper(self, fun)
        self._fun, self._nondiff, self._crossing = fun, nondiff_argnums, crossing
        self._symbolic = False

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def _define(self, rule: tuple[Callable[..., Tree], ...], symbolic_zeros: bool) -> None:
        for function in rule:
            check_function(function, self._rule)
        self.functions, self._symbolic = rule, symbolic_zeros
        self.rule_number += 1

    def _begin(
        self, args: tuple[Tree, ...], kwargs: dict[str, Tree]
    ) -> tuple[RuleCall, tuple[Tree, ...], Callable[..., Tree]]:
        """The call, the rule, and the function of arrays."""
        if not self.functions:
            raise ArgumentError(
                f"{self._name}: the function was called before its rule was set",
                found=f"no rule for {getattr(self, '__name__', 'the function')}",
                expected=f"a call of .{self._definer} first",
                do=f"set the rule after the definition: f.{self._definer}({self._rule_names})",
            )
        call = RuleCall(self._name, self._fun, args, kwargs, self._nondiff, self._crossing)

        def pure(inputs: dict[str, Value]) -> Tree:
            return call.run(inputs)[0]

        pure.__name__ = getattr(self, "__name__", "f")
        return call, self.functions, named_as_user_s(pure, self._fun, lambda: ({name: name for name in call.labels},))

    def _pair(self, returned: Tree, what: str) -> tuple[Tree, Tree]:
        if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
            raise ArgumentTypeError(
                f"{self._name}: the rule did not return a pair",
                found=describe_type(returned),
                expected=what,
                do=f"return both: {what}",
            )
        return returned[0], returned[1]


class CustomVjp(_Custom):
    """The result of ``custom_vjp``."""

    _name, _definer, _rule_names = CUSTOM_VJP, "defvjp", "fwd, bwd"
    _rule = Transformation("custom_vjp.defvjp", "{f}")

    def defvjp(self, fwd: Callable[..., Tree], bwd: Callable[..., Tree], symbolic_zeros: bool = False) -> None:
        """Set the rule.

        Args:
            fwd: ``(*args) -> (out, residuals)``.
            bwd: ``(*nondiff, residuals, cotangents) -> tangents``; see ``custom_vjp``.
            symbolic_zeros: as in ``jax.custom_vjp``: ``fwd`` gets a ``CustomVJPPrimal`` (``.value``, ``.perturbed``)
                for each array, and as the value of each variable; cotangents may be ``SymbolicZero``.
        """
        self._define((fwd, bwd), symbolic_zeros)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, (fwd, bwd), pure = self._begin(args, kwargs)

        def forward(inputs: dict[str, Value]) -> Tree:
            call.check_unmoved(lambda primal: primal.perturbed, inputs)
            residuals: list[Value] = []

            def run(entered: TracedArguments) -> Tree:
                given = _mark(call, entered, inputs) if self._symbolic else entered.arguments()[0]
                out, kept = self._pair(call.guarded(fwd, *given), "(out, residuals)")
                _unmark(entered)
                residuals.append(gather(kept))
                return out

            values = jax.tree_util.tree_map(lambda primal: primal.value, inputs)
            outputs, outcome = call.run(values, run)
            kept, frees = residuals[0], zip(call.labels, call.free, strict=True)
            fixed_values = {label: None if free else values[label] for label, free in frees} if call.fixed else None
            return outputs, (kept.values(), kept.plain, fixed_values, (kept.structure, outcome))

        def backward(kept: Tree, cotangents: Tree) -> tuple[dict[str, Value]]:
            values, plain, fixed_values, (structure, outcome) = kept
            residuals = rebuild(structure, values, plain)
            fixed = call.parted(call.enter(fixed_values).arguments()[0])[0] if call.fixed else []
            if not self._symbolic:
                cotangents = jax.tree_util.tree_map(_instantiated, cotangents)
            if call.body.propagation.structural:
                returned = call.guarded(bwd, *fixed, residuals, call.cotangents_as_states(outcome, cotangents))
            else:
                out_g = call.cotangents_as_objects(outcome, cotangents)
                wanted = "updates_g" in inspect.signature(bwd).parameters
                options = {"updates_g": call.cotangents_of_updates(outcome, cotangents)} if wanted else {}
                returned = call.guarded(bwd, *fixed, residuals, out_g, **options)
            return (call.tangents_by_label(returned),)

        rule = jax.custom_vjp(pure)
        rule.defvjp(forward, backward, symbolic_zeros=True)
        return call.apply(rule)


class CustomJvp(_Custom):
    """The result of ``custom_jvp``."""

    _name, _definer, _rule_names = CUSTOM_JVP, "defjvp", "jvp"
    _rule = Transformation("custom_jvp.defjvp", "{f}")

    def defjvp(self, jvp: Callable[..., Tree], symbolic_zeros: bool = False) -> None:
        """Set the rule.

        Args:
            jvp: ``(*nondiff, primals, tangents) -> (out, tangent)``; see ``custom_jvp``.
            symbolic_zeros: as in ``jax.custom_jvp``: tangents may be ``SymbolicZero``.
        """
        self._define((jvp,), symbolic_zeros)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, (jvp,), pure = self._begin(args, kwargs)

        def both(primals: Tree, tangents: Tree) -> Tree:
            call.check_unmoved(lambda tangent: not isinstance(tangent, SymbolicZero), *tangents)
            if not self._symbolic:
                tangents = jax.tree_util.tree_map(_instantiated, tangents)
            moved = call.enter(*tangents)
            slopes = call.parted(moved.arguments()[0])[1]
            inside: list[Tree] = []

            def run(entered: TracedArguments) -> Tree:
                fixed, differentiable = call.parted(entered.arguments()[0])
                out, tangent = self._pair(call.guarded(jvp, *fixed, differentiable, slopes), "(out, tangent)")
                inside.extend((entered, tangent))
                return out

            outputs, outcome = call.run(primals[0], run)
            entered, tangent = inside
            count = len(outcome.written) + len(outcome.unwritten)
            finals = _final_tangents(entered, moved)
            assert outcome.output is not None
            values, plain = flatten_like(outcome.output, outputs[count:], tangent, "custom_jvp: the tangent")
            return outputs, [*finals, *values, *plain]

        rule = jax.custom_jvp(pure)
        rule.defjvp(both, symbolic_zeros=True)
        return call.apply(rule)


def _mark(call: RuleCall, entered: TracedArguments, inputs: dict[str, Value]) -> list[Value]:
    """The arguments, with JAX's primal records in place of values. (``symbolic_zeros``)"""
    values, plain = call.in_order(inputs)
    marks = [call.body.propagation.structural or free for free in call.free]
    variables = enumerate(entered.variables())
    entered.put({i: values[i] for i, variable in variables if variable is not None and marks[i]})
    roots = iter(entered.roots)
    marked = entered.structure.unflatten(lambda *_: next(roots), (), plain)[0]
    stripped = entered.arguments()[0]
    return [stripped[i] if i in call.fixed else argument for i, argument in enumerate(marked)]


def _unmark(entered: TracedArguments) -> None:
    """The inverse of ``_mark``, for variables that were not written."""
    pairs = [pair for pair in enumerate(entered.variables()) if pair[1] is not None]
    entered.put({i: entered.values[i] for i, variable in pairs if _is_marked(variable.get_raw_value())})


def _is_marked(value: Value) -> bool:
    return any(isinstance(leaf, CustomVJPPrimal) for leaf in jax.tree_util.tree_leaves(value))


def _instantiated(value: Value) -> Value:
    like: Any = value
    return zero_tangent(jax.ShapeDtypeStruct(like.shape, like.dtype)) if isinstance(value, SymbolicZero) else value


def _final_tangents(entered: TracedArguments, moved: TracedArguments) -> list[Value]:
    """The tangents of the values that variables have at the end."""
    pairs = zip(entered.variables(), entered.values, moved.variables(), moved.values, strict=True)
    return [
        slope._cell.raw
        if variable._cell.raw is before or slope._cell.raw is not slope_before
        else jax.tree_util.tree_map(zero_tangent, variable._cell.raw)
        for variable, before, slope, slope_before in pairs
        if variable is not None
    ]
