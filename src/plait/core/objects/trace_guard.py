"""The trace guard: an object may be changed only in the JAX trace that it belongs to.

A write from an inner trace would leave a tracer in an object that outlives the trace; a write from an unrelated one
would be lost. Reading is always allowed.
"""

from __future__ import annotations

from typing import Any

from ...errors import TraceContextError
from ...util.jax_versions import current_trace as current_trace, describe_trace, trace_state, transform_of
from ...util.words import with_article
from .. import hooks


def check_trace(trace: Any, owner: Any, action: str) -> None:
    """Raise if ``owner``, which belongs to ``trace``, would be changed in a different trace.

    Raises:
        TraceContextError: the current trace is a different one; the message names the class, the path (if known), and
            both traces.
    """
    if trace is not trace_state.value:
        raise_foreign_trace(trace, owner, action)


def raise_foreign_trace(trace: Any, owner: Any, action: str) -> None:
    """Raise the error of ``check_trace``, unless the owner is exempt."""
    if is_excused(owner):
        return
    path = path_of(owner)
    kind = type(owner).__name__
    what = f"{action[:-2]} {with_article(kind)}" if action.endswith(" a") else f"{action} {kind}"
    here, there = describe_trace(current_trace()), describe_trace(trace)
    there = "another trace of the same kind around it" if there == here else there
    transform = transform_of(current_trace())
    raise TraceContextError(
        f"Cannot mutate {kind}: cannot {what} from a different trace than its own",
        at=f"{path} ({with_article(kind)})" if path else with_article(kind),
        found=f"the current trace is {here}",
        expected=f"{there}, where the {kind} was created",
        do="return the new value from the function, and make the change after the call"
        if transform is None
        else "make the model an argument of the function, and use plait's own transform, which keeps the change: "
        + call_with_model(transform)
        + (_FOR_STREAMS if action.startswith("draw") and transform in ("vmap", "pmap") else ""),
    )


def is_excused(owner: Any) -> bool:
    """Whether an object may be changed in a different trace."""
    return hooks.excuse is not None and hooks.excuse(owner)


# How a function of a model and an array is passed to transforms that are not called like ``plait.jit(f)(model, x)``.
_CALLS = {
    "grad": "plait.grad(f)(model, x), with argnums=1 for the gradient with respect to x alone",
    "vjp": "plait.vjp(f, model, x)",
    "jvp": "plait.jvp(f, (model, x), (model_tangent, x_tangent))",
    "linearize": "plait.linearize(f, model, x)",
    "vmap": "plait.vmap(f, in_axes=(None, 0))(model, x)",
    "pmap": "plait.pmap(f, in_axes=(None, 0))(model, x)",
    "scan": "plait.scan(f)(model, x), where f returns the model and an output",
    "lax_map": "plait.lax_map(f, x, model), where f takes a row of x and the model",
    "Stack": "stack.scan(f, x, model), where f takes a block, x and the model, and returns x and an output",
    "update_context": "context.merge(*context.split((model, x)))",
    "custom_vjp": "f(model, x), whose rule then gets it, too",
    "custom_jvp": "f(model, x), whose rule then gets it, too",
    "eval_shape": "plait.eval_shape(f, model, x)",
    "fori_loop": "plait.fori_loop(0, n, f, model), where f takes an index and the model, and returns the model",
    "while_loop": "plait.while_loop(cond_fun, f, model), where f returns the model",
    "cond": "plait.cond(pred, f, g, model, x)",
    "switch": "plait.switch(index, [f, g], model, x)",
    "shard_map": "plait.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=P())(model, x)",
}


_FOR_STREAMS = ", with its streams split (plait.split_rngs), or each element draws the same"


def call_with_model(transform: str) -> str:
    """The code, for advice, that passes a model to a transformed function."""
    return _CALLS.get(transform, f"plait.{transform}(f)(model, x)")


def path_of(owner: Any) -> str | None:
    """The path of an object, if it is found in a known model."""
    return None if hooks.find_path is None else hooks.find_path(owner)
