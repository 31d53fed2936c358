"""The table of all transforms: each as a way to run ``f(model, x)``, which returns a scalar and may write the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

import plait


@dataclasses.dataclass(frozen=True)
class Transform:
    """One transform of plait.

    Attributes:
        name: its public name.
        run: ``run(f)(model, x)`` runs ``f`` under it, once.
        writes: whether what ``f`` writes into the model reaches the caller's object.
        structural: whether changes of structure do, too, in this use of it.
        sets_attributes: whether array attributes that ``f`` sets do, too.
        traced_once: whether JAX traces its own transform once for equal calls of one function, outside of jit too.
        calls: whether plait itself calls ``f``; it cannot check a function that the user's own code calls.
        writes_params: whether ``f`` may write a ``Param`` of the model, too.
    """

    name: str
    run: Callable[[Callable[..., Any]], Callable[..., Any]]
    writes: bool = True
    structural: bool = True
    sets_attributes: bool = True
    traced_once: bool = False
    calls: bool = True
    writes_params: bool = True


def grad(f):
    return plait.grad(f)


def value_and_grad(f):
    return plait.value_and_grad(f)


def vjp(f):
    return lambda model, x: plait.vjp(f, model, x)[0]


def jvp(f):
    def run(model, x):
        tangent = jax.tree.map(jnp.zeros_like, plait.state(model, plait.Param))
        return plait.jvp(f, (model, x), (tangent, jnp.zeros_like(x)))

    return run


def linearize(f):
    return lambda model, x: plait.linearize(f, model, x)[0]


def jacrev(f):
    return plait.jacrev(f)


def jacfwd(f):
    return plait.jacfwd(f)


def hessian(f):
    return plait.hessian(f)


def hvp(f):
    def run(model, x):
        return plait.hvp(f, (model, x), jax.tree.map(jnp.zeros_like, plait.state(model, plait.Param)))

    return run


def custom_vjp(f):
    ruled = plait.custom_vjp(f)
    ruled.defvjp(lambda model, x: (f(model, x), None), lambda residuals, g: (None, None))
    return ruled


def custom_jvp(f):
    ruled = plait.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (f(*primals), jnp.zeros(())))
    return ruled


def vmap(f):
    mapped = plait.vmap(f, in_axes=(None, 0))
    return lambda model, x: mapped(model, jnp.stack([x]))


def pmap(f):
    mapped = plait.pmap(f, in_axes=(None, 0))
    return lambda model, x: mapped(model, jnp.stack([x]))


def scan(f):
    def body(model, x):
        return model, f(model, x)

    scanned = plait.scan(body)
    return lambda model, x: scanned(model, jnp.stack([x]))[1]


def lax_map(f):
    def body(x, model):
        return f(model, x)

    return lambda model, x: plait.lax_map(body, jnp.stack([x]), model)


def while_loop(f):
    def body(value):
        i, model, x = value
        f(model, x)
        return i + 1, model, x

    def goes_on(value):
        return value[0] < 1

    return lambda model, x: plait.while_loop(goes_on, body, (jnp.int32(0), model, x))[0]


def fori_loop(f):
    def body(i, value):
        f(*value)
        return value

    def run(model, x):
        plait.fori_loop(0, 1, body, (model, x))

    return run


def cond(f):
    def nothing(model, x):
        return jnp.zeros(())

    return lambda model, x: plait.cond(jnp.bool(True), f, nothing, model, x)


def switch(f):
    def nothing(model, x):
        return jnp.zeros(())

    return lambda model, x: plait.switch(jnp.int32(1), [nothing, f], model, x)


def shard_map(f):
    mesh = jax.make_mesh((1,), ("one",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    return plait.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=P())


def remat(f):
    return plait.remat(f)


def jit(f):
    return plait.jit(f)


def checkify(f):
    return plait.checkify(f)


def jit_partial(f):
    return lambda model, x: plait.jit_partial(f, model)(x)


def cached_partial(f):
    jitted = plait.jit(f)
    return lambda model, x: plait.cached_partial(jitted, model)(x)


def eval_shape(f):
    return lambda model, x: plait.eval_shape(f, model, x)


def make_jaxpr(f):
    return plait.make_jaxpr(f)


def stack_scan(f):
    blocks = plait.Stack(lambda rngs: plait.Linear(1, 1, rngs=rngs), 1, rngs=plait.Rngs(0))

    def body(block, x, model):
        return x, f(model, x)

    return lambda model, x: blocks.scan(body, x, model)[1][0]


# Ways to enter and leave a transform of JAX by hand.


def update_context(f):
    @jax.jit
    def pure(graphdef, state, x):
        context = plait.current_update_context("row")
        model = context.merge(graphdef, state)
        out = f(model, x)
        return *context.split(model), out

    def run(model, x):
        with plait.update_context("row") as context:
            graphdef, state, out = pure(*context.split(model), x)
            context.merge(graphdef, state)
        return out

    return run


def update_context_alone(f):
    """The four steps without a transform in between."""

    def run(model, x):
        with plait.update_context("row") as context:
            inner = context.merge(*context.split(model))
            out = f(inner, x)
            context.merge(*context.split(inner))
        return out

    return run


def from_tree(f):
    @jax.jit
    def pure(tree):
        model, x = plait.from_tree(tree, is_inner=True, ctxtag="row")
        out = f(model, x)
        return plait.to_tree((model, out), ctxtag="row")

    @plait.update_context("row")
    def run(model, x):
        tree = pure(plait.to_tree((model, x), ctxtag="row"))
        return plait.from_tree(tree, is_inner=False, ctxtag="row")[1]

    return run


TRANSFORMS = [
    Transform("jit", jit, traced_once=True),
    Transform("grad", grad),
    Transform("value_and_grad", value_and_grad),
    Transform("vjp", vjp, structural=False, sets_attributes=False),
    Transform("jvp", jvp, structural=False, sets_attributes=False),
    Transform("linearize", linearize, structural=False, sets_attributes=False),
    Transform("jacrev", jacrev),
    Transform("jacfwd", jacfwd),
    Transform("hessian", hessian),
    Transform("hvp", hvp),
    Transform("custom_vjp", custom_vjp),
    Transform("custom_jvp", custom_jvp, structural=False, sets_attributes=False),
    Transform("vmap", vmap),
    Transform("pmap", pmap),
    Transform("scan", scan, structural=False, traced_once=True),
    Transform("lax_map", lax_map, structural=False, traced_once=True),
    Transform("while_loop", while_loop, structural=False, traced_once=True),
    Transform("fori_loop", fori_loop, structural=False, traced_once=True),
    Transform("cond", cond, structural=False, traced_once=True),
    Transform("switch", switch, structural=False, traced_once=True),
    Transform("shard_map", shard_map),
    Transform("remat", remat, traced_once=True),
    Transform("checkify", checkify),
    Transform("jit_partial", jit_partial, structural=False, sets_attributes=False),
    Transform("cached_partial", cached_partial, traced_once=True),
    Transform("eval_shape", eval_shape, writes=False),
    Transform("make_jaxpr", make_jaxpr, writes=False),
    Transform("Stack.scan", stack_scan, structural=False, writes_params=False),
    Transform("update_context", update_context, traced_once=True, calls=False),
    Transform("update_context, alone", update_context_alone, calls=False),
    Transform("from_tree", from_tree, traced_once=True, calls=False),
]

# Public functions of the transforms package that run no function of the user's under a JAX transform.
NOT_TRANSFORMS = {
    "transform_metadata",
    "capture_gradients",  # value_and_grad, of a loss that captures
    "prefix",
    "split_rngs",
    "with_rngs",
    "fork_rngs",
    "reseed",
    "backup_keys",
    "restore_rngs",
    "load_compiled",
    "to_tree",  # beside from_tree
    "compat",
}
