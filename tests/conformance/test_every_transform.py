"""What every transform does alike, over the table of all of them."""

import collections
import contextlib
import copy
import functools
import pickle
import re
import sys
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import plait
from plait._public import PUBLIC
from plait.core.graph import modes
from plait.errors import (
    ArgumentError,
    CapturedModelWarning,
    DonatedArrayError,
    PlaitError,
    TraceContextError,
)
from plait.flax.compat.update_context import UpdateContext
from tests.conformance.transforms import NOT_TRANSFORMS, TRANSFORMS
from tests.oracles import describe
from tests.strategies import Node

each = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: transform.name)
WRITING = [transform for transform in TRANSFORMS if transform.writes]
CALLING = [transform for transform in TRANSFORMS if transform.calls]
each_that_calls = pytest.mark.parametrize("transform", CALLING, ids=lambda transform: transform.name)
each_that_writes = pytest.mark.parametrize("transform", WRITING, ids=lambda transform: transform.name)


def make_model():
    return Node(inner=Node(w=plait.Param(jnp.float32(2)), n=plait.Variable(jnp.float32(0))), items=[1.0])


def step(model, x):
    model.inner.n[...] += 1
    return model.inner.w[...] * x


def test_every_transform_has_a_row():
    public = {name for name, place in PUBLIC.items() if place.startswith(("transforms", "flax.compat.partials"))}
    functions = {
        name for name in public if callable(getattr(plait, name)) and not isinstance(getattr(plait, name), type)
    }
    assert functions - {transform.name for transform in TRANSFORMS} - NOT_TRANSFORMS == set()


# The rows of these wrap the function before the transform sees it.
DIRECTLY = {
    "scan": lambda: plait.scan(3)(make_model(), jnp.ones(2)),
    "lax_map": lambda: plait.lax_map(3, jnp.ones(2)),
    "while_loop": lambda: plait.while_loop(lambda x: x < 2, 3, jnp.float32(1)),
    "fori_loop": lambda: plait.fori_loop(0, 2, 3, jnp.float32(1)),
    "cached_partial": lambda: plait.cached_partial(3, make_model()),
    "Stack.scan": lambda: plait.Stack(lambda rngs: plait.Linear(1, 1, rngs=rngs), 1, rngs=plait.Rngs(0)).scan(3, 1.0),
}


@each_that_calls
def test_what_is_no_function_is_refused_by_the_name_of_the_transform(transform):
    run = DIRECTLY.get(transform.name, lambda: transform.run(3)(make_model(), jnp.float32(1)))
    name = "jit" if transform.name == "jit_partial" else transform.name
    with pytest.raises(TypeError, match=f"{name} takes a function|jitted function|must be callable"):
        run()


@pytest.mark.sampled
@each_that_writes
def test_a_write_reaches_the_callers_own_variable(transform):
    """U8: once, and on the same object."""
    model = make_model()
    variable = model.inner.n
    transform.run(step)(model, jnp.float32(3))
    assert model.inner.n is variable
    assert model.inner.n[...] == 1


def write_and_raise(model, x):
    model.label, model.inner.again = "seen", plait.Variable(x)
    step(model, x)
    raise LookupError("of the user's own")


@each_that_calls
def test_a_function_that_raises_changes_nothing(transform):
    """U21."""
    model = make_model()
    before = describe(model)
    with pytest.raises((LookupError, PlaitError)):
        transform.run(write_and_raise)(model, jnp.float32(3))
    assert describe(model) == before


def decide(model, x):
    return model.inner.w[...] * x if model.inner.w[...] * x > 0 else x


def cause_of(f, *args):
    """The error of a call, or none."""
    try:
        f(*args)
    except (jax.errors.ConcretizationTypeError, PlaitError) as error:
        return error
    return None


@each_that_calls
@pytest.mark.parametrize("outside", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_jax_names_a_traced_value_as_the_user_does(transform, outside):
    """X4: with the user's function, file and arguments, none of plait's."""
    error = cause_of(outside(transform.run(decide)), make_model(), jnp.float32(3))
    if transform.name == "pmap":  # JAX's own has a function of JAX around it, whose arguments are flat_args[0], ...
        return
    if error is None:
        assert transform.name in CONCRETE
        assert outside is not plait.jit
        return
    told = str(error)
    traced = re.search(r"tracing the function (.+) at (.+):\d+ for", told)
    assert traced is None or "tests" in traced[2], told
    # JAX itself names no arguments of a function with a rule; vmap and checkify have lines instead.
    assert re.search(r"\.inner\.w\b|created on line|operations on|arguments unknown", told), told
    assert not re.search(r"<unknown>|_plait|(inputs|handed|slices|given|carried|tree)\[|src/plait", told), told


# Eagerly, JAX computes with the values themselves.
CONCRETE = {
    *("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacrev", "jacfwd", "hessian", "hvp"),
    *("custom_vjp", "custom_jvp", "shard_map"),
}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m, x: plait.jit(lambda model, mask, x: bool(x.sum()))(m, None, x), "argument x."),
        (lambda m, x: plait.jit(lambda model, batch: bool(batch["x"].sum()))(m, {"a": None, "x": x}), "batch['x']"),
        (lambda m, x: plait.jit(lambda model, *, x: bool(x.sum()))(m, x=x), "argument x."),
        (
            lambda m, x: plait.scan(lambda w, y: (bool(w["b"].sum()), y)[1], in_axes=(None, 0), out_axes=0)(
                plait.Variable({"a": x, "b": x}), x
            ),
            "w['b']",
        ),
    ],
    ids=["a none", "a dictionary", "a keyword", "a shared dictionary"],
)
def test_jax_names_arguments_of_each_form(call, named):
    """X4."""
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        call(make_model(), jnp.ones(3))
    assert named in str(error.value)


def test_a_traceback_has_the_frames_of_the_user(users_promotion):
    """X4: those of plait and JAX come back by JAX's own setting."""

    class Block(plait.Module):
        def __init__(self, rngs):
            self.linear = plait.Linear(2, 2, rngs=rngs)

        def __call__(self, x):
            return jnp.concatenate([self.linear(x), jnp.ones((7, 2))], axis=1)

    def step(model, x):
        return plait.value_and_grad(lambda model: model(x).sum())(model)[0]

    found = {}
    for setting in ("auto", "off"):
        with jax._src.config.traceback_filtering(setting), pytest.raises(TypeError) as caught:
            jax.jit(lambda x: plait.jit(step)(Block(plait.Rngs(0)), x))(jnp.ones((3, 2)))
        files = [entry.frame.code.path for entry in caught.traceback]
        found[setting] = [str(file) for file in files if "/plait/" in str(file) and "tests" not in str(file)]
    assert found["auto"] == []
    assert len(found["off"]) > 20


def scaled(value):
    """A function with a closure, and the function that changes what it closes over."""

    def act(x):
        return x * value

    def change(new):
        nonlocal value
        value = new

    return act, change


def deep_in_a_tuple(value):
    act, change = scaled(value)
    return (0, functools.partial(lambda f, x: f(x), lambda x: act(x))), change


def keyword_of_a_partial(value):
    act = functools.partial(lambda x, value: x * value, value=value)
    return act, lambda new: act.keywords.update(value=new)


def wrapped(value):
    act, change = scaled(value)
    return functools.wraps(jax.nn.relu)(act), change


def default(value):
    def act(x, value=value):
        return x * value

    return act, lambda new: setattr(act, "__defaults__", (new,))


FUNCTIONS = [scaled, deep_in_a_tuple, keyword_of_a_partial, wrapped, default]


def write_what_act_returns(model, x):
    act = model.act[1] if isinstance(model.act, tuple) else model.act
    model.inner.n[...] = jnp.float32(act(3.0))
    return model.inner.w[...] * x


@pytest.mark.sampled
@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
@each_that_writes
def test_what_a_static_function_closes_over_is_seen_at_once(transform, make):
    """G14: by each call, and a function that was equal to it stays what it is."""
    f = transform.run(write_what_act_returns)
    (act, change), (other, _) = make(2.0), make(2.0)
    model, twin = make_model(), make_model()
    model.act, twin.act = act, other

    def written(each):
        f(each, jnp.float32(3))
        return float(each.inner.n[...])

    assert [written(model), written(model), written(twin)] == [6, 6, 6]
    change(5.0)
    assert [written(model), written(model), written(twin)] == [15, 15, 6]
    model.unrelated = 1
    assert [written(model), written(twin)] == [15, 6]


@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("through", ["itself", "clone", "merge", "a change of structure", "Stack"])
def test_equal_functions_are_not_exchanged(make, through):
    """G14: a model keeps its own, whatever becomes of one that was equal to it."""

    class Block(plait.Module):
        def __init__(self, act):
            self.act, self.w = act, plait.Param(jnp.ones(()))

        def __call__(self, x):
            return (self.act[1] if isinstance(self.act, tuple) else self.act)(x) * self.w

    def built(act):
        return plait.Stack([Block(act)]) if through == "Stack" else Block(act)

    (act, change), (own, change_own) = make(2.0), make(2.0)
    first, second = built(act), built(own)
    forward = plait.jit(lambda model, x: model(x))
    for model in (first, second):
        plait.split(model)
    assert [float(forward(model, jnp.float32(3))) for model in (first, second)] == [6, 6]
    if through == "a change of structure":
        for model in (first, second):
            plait.jit(lambda model: setattr(model, "note", 1))(model)
    change(7.0)
    seen = {"clone": plait.clone, "merge": lambda model: plait.merge(*plait.split(model))}.get(through, lambda m: m)(
        second
    )
    assert [float(forward(seen, jnp.float32(3))), float(seen(jnp.float32(3)))] == [6, 6]
    change_own(5.0)
    assert [float(forward(seen, jnp.float32(3))), float(seen(jnp.float32(3)))] == [15, 15]


def write_by_shape(model, x):
    written = model.inner.n if model.inner.w.ndim == 1 else model.inner.w
    written[...] += 1
    return model.inner.w[...].sum() * x


@pytest.mark.sampled
@pytest.mark.parametrize("transform", [each for each in WRITING if each.writes_params], ids=lambda each: each.name)
def test_what_a_call_writes_depends_on_its_own_shapes(transform):
    """U27: JAX traces a loop or branch once for each combination of shapes; each call knows what its trace did."""
    f = transform.run(write_by_shape)
    for shape in [(1,), (1, 1), (1,), (1, 1)]:
        model = make_model()
        model.inner.w = plait.Param(jnp.ones(shape))
        f(model, jnp.float32(3))
        assert (float(model.inner.n[...]), float(model.inner.w[...].sum())) == ((1, 1) if len(shape) == 1 else (0, 2))


def set_attribute(model, x):
    model.inner.seen = model.inner.seen + 1
    return model.inner.w[...] * x


@pytest.mark.sampled
@each_that_writes
def test_an_array_attribute_that_is_set_reaches_the_callers_object(transform):
    """U18, U28: it travels as a value, like that of a variable; several times over, and in a nest of transforms."""
    model = make_model()
    model.inner.seen, nested = jnp.float32(1), plait.clone(model)
    nested.inner.seen, inner = jnp.float32(1), model.inner
    transform.run(set_attribute)(model, jnp.float32(3))
    transform.run(set_attribute)(model, jnp.float32(3))
    plait.jit(lambda model: (transform.run(set_attribute)(model, jnp.float32(3)), None)[1])(nested)
    assert model.inner is inner
    assert float(model.inner.seen) == (3 if transform.sets_attributes else 1)
    assert float(nested.inner.seen) == (2 if transform.sets_attributes else 1)


@pytest.mark.sampled
@each
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_no_tracer_is_left_in_a_captured_model(transform):
    """G64: what a transform does to a captured model inside a trace is refused as a direct write is."""
    model = make_model()
    before = describe(model)

    @plait.jit
    def outer(x):
        transform.run(step)(model, x)
        return x

    if transform.writes:
        with pytest.raises(TraceContextError, match=r"cannot change the value of Variable(?s:.)*at +model\.inner\.n"):
            outer(jnp.float32(3))
    else:
        outer(jnp.float32(3))
    assert describe(model) == before


class Key:
    """A key without an order."""


TABLE = {Key(): 2.0, "rate": 3.0, int: [1.0]}
TABLE["itself"] = [TABLE]


@pytest.mark.sampled
@each
def test_a_function_may_read_a_table_whose_keys_have_no_order(transform):
    """G64: what it captures is searched for models, also in containers that are not pytrees."""
    transform.run(lambda model, x: step(model, x) * TABLE["rate"])(make_model(), jnp.float32(3))


HELD = plait.Dict(w=plait.Param(jnp.float32(1)), items_=plait.data([1.0]))
THIS = sys.modules[__name__]


class Holder:
    """A plain object that holds a model."""

    def __init__(self):
        self.model = HELD

    def use(self, x):
        return used(self.model, x)


REGISTRY = weakref.WeakValueDictionary(model=HELD)


class Calling(Node):
    """A module whose method uses another one."""

    def use(self, x):
        return used(HELD, x)


HOLDER, USING = Holder(), types.SimpleNamespace(use=Calling(inner=HELD).use)


def used(model, x):
    if APPENDS:
        model.items_.append(x)
    return model.w[...] * x


def use_globally(x):
    return used(HELD, x)


def ways_to_capture():
    held = HELD

    @functools.wraps(step)
    def decorated(model, x):
        return used(held, x)

    return {
        "a closure": lambda model, x: used(held, x),
        "a global": lambda model, x: used(HELD, x),
        "a function that is called": lambda model, x: use_globally(x),
        "a decorator": decorated,
        "a default": lambda model, x, held=held: used(held, x),
        "a plain object": lambda model, x: used(HOLDER.model, x),
        "a method of one": lambda model, x: HOLDER.use(x),
        "a module of Python": lambda model, x: used(THIS.HELD, x),
        "a method of an argument": lambda model, x: model.inner.use(x),
        "a function of an argument": lambda model, x: model.inner.function(x),
        "a partial": functools.partial(lambda held, model, x: used(held, x), held),
        "a computed name": lambda model, x: used(getattr(HOLDER, "mo" + "del"), x),
        "a registry": lambda model, x: used(REGISTRY["mo" + "del"], x),
        "a bound method of a model": lambda model, x: USING.use(x),
    }


APPENDS = []
WAYS = [*ways_to_capture()]
NAMED_WAYS = ["a closure", "a global", "a function that is called", "a decorator", "a default", "a partial"]
# Their programs outlive the call, and a warning says that a captured model is a constant of them.
COMPILED = {"jit", "jit_partial", "cached_partial", "pmap"}
ABSTRACT = {"make_jaxpr", "eval_shape"}  # they return no values


def make_calling_model():
    inner = Calling(w=plait.Param(jnp.float32(2)), n=plait.Variable(jnp.float32(0)), function=use_globally)
    return Node(inner=inner, items=[1.0])


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_a_captured_model_that_becomes_a_constant_is_warned_of(name):
    """U27."""
    (transform,) = (each for each in TRANSFORMS if each.name == name)
    run = transform.run(lambda model, x: HELD.w[...] * x)
    with pytest.warns(CapturedModelWarning, match="captures HELD from outside"):
        run(make_model(), jnp.float32(3))


FRESH = [each for each in TRANSFORMS if each.name not in COMPILED | ABSTRACT]


STATE, HELD_STACK = plait.state(HELD), plait.Stack([Node(w=plait.Param(jnp.float32(1)))])


def ways_to_read():
    """What of a captured model a function reads, and through what."""
    held = HELD
    return {
        "value": lambda: held.w.value,
        "an operator": lambda: held.w * 1.0,
        "float": lambda: float(held.w),
        "numpy": lambda: np.asarray(held.w),
        "its leaves": lambda: jax.tree.leaves(held)[-1],
        "split": lambda: plait.split(held)[1]["w"].value,
        "a clone": lambda: plait.clone(held).w.value,
        "a shallow copy": lambda: copy.copy(held).w[...],
        "a deep copy": lambda: copy.deepcopy(held).w[...],
        "a pickle": lambda: pickle.loads(pickle.dumps(held)).w[...],
        "a state made before": lambda: STATE["w"][...],
        "a layer of a stack": lambda: HELD_STACK[0].w[...],
        "update": lambda: updated(held).w[...],
        "merge": lambda: plait.merge(plait.graphdef(held), STATE).w[...],
        "copy_from": lambda: copied(held.w)[...],
        "a function under remat": lambda: plait.remat(lambda x: held.w[...] * x)(jnp.float32(1)),
        "a derivative": lambda: plait.grad(lambda x: held.w[...] * x)(jnp.float32(1)),
        "a callback": lambda: jax.pure_callback(lambda: np.float32(held.w), jax.ShapeDtypeStruct((), jnp.float32)),
    }


def updated(source):
    mine = plait.Dict(w=plait.Param(jnp.float32(0)), items_=plait.data([1.0]))
    plait.update(mine, plait.state(source))
    return mine


def copied(source):
    mine = plait.Param(jnp.float32(0))
    mine.copy_from(source)
    return mine


READS = [*ways_to_read()]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("transform", "way"),
    [
        pytest.param(each, way, id=f"{each.name}-{way}", marks=[pytest.mark.slow] * (not each.traced_once))
        for each in FRESH
        for way in (*WAYS, *READS)
        if each.calls
    ],
)
def test_a_captured_model_has_its_current_values(transform, way):
    """U27: outside of jit, also where JAX keeps the trace of one function; or the program is refused."""
    read = None if way in WAYS else ways_to_read()[way]
    f = ways_to_capture()[way] if read is None else lambda model, x: read() * x

    def written(model, x):  # while_loop and fori_loop return no output of the function
        value = f(model, jnp.float32(3))
        model.inner.n[...] = value
        return value + 0 * x

    run, model = transform.run(written), make_calling_model()
    for value in (1.0, 2.0, 1.0):
        for each in (HELD.w, STATE["w"], HELD_STACK[0].w):
            each[...] = jnp.float32(value)
        out = run(model, jnp.float32(3))
        if transform.writes:
            assert float(model.inner.n[...]) == 3 * value
        else:
            assert 3 * value in sums(out)


class Plain:
    rate = jnp.float32(2)


def plain_values():
    """Plain values that a function reads, each with a function that changes it."""
    number, module = 2.0, Node(array=jnp.float32(2), rate=2.0)

    def set_number():
        nonlocal number
        number = 5.0

    return {
        "a number in a closure": (lambda: number, set_number),
        "a class attribute": (lambda: Plain.rate, lambda: setattr(Plain, "rate", jnp.float32(5))),
        "a static attribute of a captured module": (lambda: module.rate, lambda: setattr(module, "rate", 5.0)),
        "an array attribute of one": (lambda: module.array, lambda: setattr(module, "array", jnp.float32(5))),
    }


IN_JAX = {
    "scan": lambda f: lambda x: jax.lax.scan(f, x, None, length=1)[0],
    "cond": lambda f: lambda x: jax.lax.cond(True, f, f, x, None)[0],
    "remat": lambda f: lambda x: jax.checkpoint(f)(x, None)[0],
}


@pytest.mark.sampled
@pytest.mark.parametrize("what", plain_values())
@pytest.mark.parametrize("transform", [each for each in FRESH if each.calls], ids=lambda transform: transform.name)
def test_a_plain_value_is_that_of_the_trace_which_jax_keeps(transform, what, monkeypatch):
    """U27: where JAX traces once for one function, that of the first trace, as in JAX; else the current one."""
    monkeypatch.setattr(Plain, "rate", Plain.rate)
    read, change = plain_values()[what]

    def f(model, x):
        model.inner.n[...] = jnp.float32(read())
        return x * 1.0

    run, model, found = transform.run(f), make_model(), []
    in_jax = IN_JAX.get(transform.name, lambda f: lambda x: jnp.float32(2))(lambda x, _: (read() + 0 * x, None))
    for _ in range(2):
        run(model, jnp.float32(3))
        found.append((float(model.inner.n[...]), float(in_jax(jnp.float32(3)))))
        change()
    kept = transform.traced_once or transform.name == "Stack.scan"
    assert [ours for ours, _ in found] == [2, 2 if kept else 5]
    assert [theirs for _, theirs in found] == [2, 2]


def sums(tree):
    return [float(jnp.sum(leaf)) for leaf in jax.tree.leaves(tree) if not callable(leaf)]


def in_a_trace(transform, f):
    """The transformed function, traced: one with a rule has no trace of its own."""
    run = transform.run(f)
    return plait.jit(lambda model, x: run(model, x)) if transform.name.startswith("custom_") else run


@pytest.mark.sampled
@each_that_calls
@pytest.mark.parametrize("way", NAMED_WAYS)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_no_captured_container_changes(transform, way, monkeypatch):
    """G64: if the function has the model by a name."""
    if way == "a default" and transform.name.startswith("custom_"):
        pytest.skip("a rule gets the defaults of its function as arguments")
    monkeypatch.setattr(THIS, "APPENDS", [True])
    try:
        with pytest.raises(TraceContextError, match="cannot change the contents of a"):
            in_a_trace(transform, ways_to_capture()[way])(make_calling_model(), jnp.float32(3))
        assert HELD.items_ == [1.0]
    finally:
        del HELD.items_[1:]


# What a function is called with, and returns, where that is not a model and an array, and a scalar.
CALLED_OTHERWISE = {
    "scan": lambda model, x: (model, x),
    "lax_map": lambda x, model: x,
    "Stack.scan": lambda block, x, model: (x, None),
    "fori_loop": lambda i, model: model,
    "while_loop": lambda model: model,
}
# Their outputs are scalars, or what was passed to them.
RETURN_NONE = {"grad", "value_and_grad", "jacrev", "jacfwd", "hessian", "hvp", "while_loop", "fori_loop"}
RETURNING = [each for each in CALLING if each.name not in RETURN_NONE] + [TRANSFORMS[-1]]
# A branch would have to return it from all branches.
RETURN_COPIES = {"remat", "checkify", "eval_shape"}


@pytest.mark.parametrize(
    "transform",
    [each for each in RETURNING if each.name not in RETURN_COPIES | {"cond", "switch"}],
    ids=lambda transform: transform.name,
)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_is_no_output_and_the_advice_runs(transform):
    """U26."""
    with pytest.raises(ArgumentError, match="captured from outside") as caught:
        in_a_trace(transform, lambda model, x: HELD)(make_model(), jnp.float32(3))
    assert eval_advice(caught.value.parts["do"], transform.name) is not None


ATTACHING = [each for each in TRANSFORMS if each.structural and each.name not in ABSTRACT]


@pytest.mark.parametrize("transform", ATTACHING, ids=lambda transform: transform.name)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_is_put_nowhere(transform):
    """U26."""
    if transform.name == "update_context, alone":
        return  # nothing is traced

    def attach(model, x):
        model.child = HELD
        return x * 1.0

    model = make_model()
    with pytest.raises(ArgumentError, match="captured from outside"):
        in_a_trace(transform, attach)(model, jnp.float32(3))
    assert not hasattr(model, "child")


@pytest.mark.parametrize("name", ["jit", "remat", "custom_vjp"])
def test_where_nothing_is_traced_a_captured_model_comes_out_as_a_copy(name):
    """U26: no trace tells it from an object that the function made."""
    (transform,) = (each for each in TRANSFORMS if each.name == name)
    with jax.disable_jit():
        out = transform.run(lambda model, x: HELD)(make_model(), jnp.float32(3))
    assert out is not HELD
    assert describe(out) == describe(HELD)


CARRYING = [each for each in CALLING if each.structural and each.writes]


@pytest.mark.parametrize("transform", CARRYING, ids=lambda transform: transform.name)
def test_the_mode_is_that_of_the_call(transform):
    """U32: not that in which the function was transformed."""

    def name(model, x):
        model.inner.name = "seen"
        return model.inner.w[...] * x

    with plait.set_graph_updates(False):
        run = transform.run(name)
    model = make_model()
    run(model, jnp.float32(3))
    assert model.inner.name == "seen"
    with plait.set_graph_updates(False):
        other = make_model()
        run = plait.jit(lambda model, x: transform.run(name)(model, x))
        with contextlib.suppress(PlaitError):
            run(other, jnp.float32(3))
    assert not hasattr(other.inner, "name")


def eval_advice(advice, name):
    code = re.search(r"(plait\.|stack\.|context\.|f\().*?\)(?=,? where|,? with|, whose|$)", advice)[0]
    model, x = make_model(), jnp.ones(1)
    scope = {
        "plait": plait, "model": model, "x": x, "pred": True, "index": 0, "P": jax.P, "g": lambda model, x: x.sum(),
        "f": CALLED_OTHERWISE.get(name, lambda model, x: (model.inner.w[...] * x).sum()),
        "model_tangent": jax.tree.map(jnp.zeros_like, model), "x_tangent": x,
        "mesh": jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1]),
        "context": UpdateContext("advice"),
        "stack": plait.Stack(lambda rngs: plait.Linear(1, 1, rngs=rngs), 1, rngs=plait.Rngs(0)),
    }  # fmt: skip
    return eval(code, scope)


def read(model, x):
    return model.inner.n[...] * x


@pytest.mark.sampled
@each_that_calls
def test_a_deleted_array_is_named(transform):
    """X10: with its path, whichever transform gets it; those that see only shapes may take it."""
    model = make_model()
    model.inner.n[...] = jnp.array(2.0) + 1
    model.inner.n.value.delete()
    unread = {"fori_loop", "while_loop"} if jax.__version_info__ >= (0, 11) else {"fori_loop"}
    if transform.name in ABSTRACT | unread:
        transform.run(read)(model, jnp.float32(3))
    else:
        with pytest.raises(DonatedArrayError, match=r"at .*\.inner\.n"):
            transform.run(read)(model, jnp.float32(3))


@each_that_calls
def test_a_variable_without_an_array_is_named(transform):
    """X10: unless the function itself gets its value, or tangents are made of it, before JAX does."""
    model, given = make_model(), []
    model.inner.n = plait.Variable("text")

    def read(model, x):
        given.append(model.inner.n.value)
        return x * model.inner.n.value

    with pytest.raises((ArgumentError, TypeError)) as caught:
        transform.run(read)(model, jnp.float32(3))
    if not given and transform.name not in {"jvp", "hvp", "custom_vjp", "custom_jvp"}:
        assert isinstance(caught.value, ArgumentError)
        assert re.search(r"at .*\.inner\.n\n", str(caught.value))


# A captured model as the argument, and as a part of what the trace itself makes.
held = pytest.mark.parametrize("held", [lambda model: model, lambda model: Node(inner=model.inner)], ids=["", "part"])


def add_attribute(model, x):
    model.inner.label = "seen"
    return x * 1.0


STRUCTURAL = [transform for transform in WRITING if transform.structural]


@pytest.mark.sampled
@pytest.mark.parametrize("transform", STRUCTURAL, ids=lambda transform: transform.name)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@held
def test_no_attribute_is_set_on_a_captured_model(transform, held):
    """G64: and so for changes of structure."""
    model = make_model()
    before = describe(model)

    @plait.jit
    def outer(x):
        transform.run(add_attribute)(held(model), x)
        return x

    with pytest.raises(TraceContextError, match=r"cannot (set the attribute 'label'|change the value) of "):
        outer(jnp.float32(3))
    assert describe(model) == before


def add_and_write(model, x):
    model.label = "seen"
    return step(model, x)


@pytest.mark.parametrize("transform", STRUCTURAL, ids=lambda transform: transform.name)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_no_captured_variable_is_written_beside_a_change_of_structure(transform):
    """G64: of what the trace itself made, around a part of a captured model."""
    model = make_model()
    before = describe(model)

    @plait.jit
    def outer(x):
        transform.run(add_and_write)(Node(inner=model.inner), x)
        return x

    with pytest.raises(TraceContextError, match=r"cannot change the value of \w+(?s:.)*at +model\.inner\."):
        outer(jnp.float32(3))
    assert describe(model) == before


SETTING = [transform for transform in WRITING if transform.sets_attributes]


@pytest.mark.sampled
@pytest.mark.parametrize("transform", SETTING, ids=lambda transform: transform.name)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@held
def test_no_array_attribute_is_set_on_a_captured_model(transform, held):
    """G64: and so for array attributes."""
    model = make_model()
    model.inner.seen = jnp.float32(1)
    before = describe(model)

    @plait.jit
    def outer(x):
        transform.run(set_attribute)(held(model), x)
        return x

    # By hand all values come out of the transform, so that of a variable may be the first.
    what = r"set the attribute 'seen' of a Node" if transform.calls else "set the attribute|change the value"
    with pytest.raises(TraceContextError, match=f"cannot ({what})"):
        outer(jnp.float32(3))
    assert describe(model) == before


@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp"])
def test_what_is_not_traced_may_change_what_it_captures(name):
    """G64: a function with a rule runs as it is at the top level, where its writes to variables stand, too."""
    (transform,) = (each for each in TRANSFORMS if each.name == name)
    captured = make_model()

    def appends(model, x):
        captured.items.append(float(x))
        captured.inner.n[...] += 1
        return model.inner.w[...] * x

    transform.run(appends)(make_model(), jnp.float32(3))
    assert (captured.items, float(captured.inner.n[...])) == ([1.0, 3.0], 1.0)


# Transforms in which JAX refuses a function with a reverse rule.
NO_VJP_RULE = {"shard_map", "jvp", "jacfwd", "hessian", "hvp", "linearize"}


def ruled(f):
    """With a rule for its derivative, which transforms of JAX do not take for another function at each call."""
    function = plait.custom_vjp(f)
    function.defvjp(lambda model, x: (f(model, x), None), lambda residuals, g: (None, None))
    return function


@each
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_may_refer_to_itself(transform):
    captured = make_model()
    captured.inner.above = captured

    def f(model, x):
        return captured.inner.w[...] * x

    transform.run(f)(make_model(), jnp.float32(3))


OF = {"function": lambda f: f, "partial": functools.partial, "custom_vjp": ruled}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("transform", "of"),
    [
        pytest.param(transform, of, id=f"{transform.name}-{name}", marks=[pytest.mark.slow] * (name == "partial"))
        for transform in TRANSFORMS
        for name, of in OF.items()
        if of is not ruled or transform.name not in NO_VJP_RULE
    ],
)
def test_an_equal_call_is_traced_no_more_often_than_by_jax(transform, of):
    """Outside of jit: what JAX keeps for its own transforms is kept for ours."""
    counts = collections.Counter()

    def counted(model, x):
        counts["traces"] += 1
        return step(model, x)

    run, model = transform.run(of(counted)), make_model()
    run(model, jnp.float32(3))
    first = counts["traces"]
    run(model, jnp.float32(4))
    assert counts["traces"] - first <= (0 if transform.traced_once else first)


@pytest.mark.sampled
@each
def test_nothing_leaks(transform):
    with jax.checking_leaks():
        transform.run(step)(make_model(), jnp.float32(3))


class Comparing(plait.Param):
    """A variable of a library that has its own idea of equality, as Keras has: elementwise, and of arrays alone."""

    def __eq__(self, other):
        if not isinstance(other, (jax.Array, Comparing)):
            raise TypeError("compared with something else than an array")
        return self[...] == other

    __hash__ = plait.Param.__hash__


@pytest.mark.sampled
@each
def test_a_variable_is_never_asked_whether_it_equals_another_object(transform):
    """What is the same object is told by identity."""
    model = make_model()
    model.inner.w, model.inner.again = Comparing(jnp.float32(2)), Comparing(jnp.float32(2))
    transform.run(step)(model, jnp.float32(3))
    plait.jit(lambda model: (transform.run(step)(model, jnp.float32(3)), None)[1])(model)
    assert model.inner.n[...] == (2 if transform.writes else 0)


# Settings of the thread, each as a number that a function may read, and for the length of a block.
SETTINGS = {
    "logical_axis_rules": (
        lambda: len(plait.spmd.get_logical_axis_rules()),
        lambda: plait.logical_axis_rules([("embed", None)]),
    ),
    "var_defaults": (lambda: plait.var_defaults()["ref"], lambda: plait.var_defaults(ref=True)),
    "use_eager_sharding": (plait.using_eager_sharding, lambda: plait.use_eager_sharding(False)),
    "set_graph_mode": (modes.graph_mode, lambda: plait.set_graph_mode(False)),
    "set_graph_updates": (modes.graph_updates_mode, lambda: plait.set_graph_updates(False)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "transform", [each for each in TRANSFORMS if each.name not in ABSTRACT], ids=lambda transform: transform.name
)
def test_a_setting_is_that_of_the_call(transform, name):
    """U27: whatever is kept is kept for one value of each setting."""
    if transform.name == "cached_partial" and name.startswith("set_graph"):
        return  # it refuses these modes
    read, change = SETTINGS[name]
    model, found = make_model(), []
    run = transform.run(lambda model, x: model.inner.w[...] * x * (2.0 + float(read())))
    for changes in (False, True, False):
        fresh = transform.run(lambda model, x: model.inner.w[...] * x * (2.0 + float(read())))
        with change() if changes else contextlib.nullcontext():
            found.append((sums(run(model, jnp.float32(3))), sums(fresh(model, jnp.float32(3)))))
    assert found[0][0] == found[0][1] == found[2][0]
    assert found[1][0] == found[1][1]
    if found[0][0] and transform.name not in RETURN_NONE - {"grad", "value_and_grad"}:
        assert found[0] != found[1]


def write_by_setting(model, x):
    written = model.inner.w if plait.var_defaults()["ref"] else model.inner.n
    written[...] += 1
    return model.inner.w[...] * x


@pytest.mark.sampled
@pytest.mark.parametrize("transform", [each for each in WRITING if each.writes_params], ids=lambda each: each.name)
def test_what_a_call_writes_depends_on_its_own_settings(transform):
    """U27: JAX traces it once for each of them; each call knows what its trace did."""
    run = transform.run(write_by_setting)
    for ref in (False, True, False, True):
        model = make_model()
        with plait.var_defaults(ref=ref):
            run(model, jnp.float32(3))
        assert (float(model.inner.n[...]), float(model.inner.w[...])) == ((0, 3) if ref else (1, 2))
