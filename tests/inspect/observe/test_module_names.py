"""Compiled programs name the modules that their operations come from."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.core import hooks
from plait.inspect.module_operations import ModuleOperations, _Place, _steps_of
from plait.inspect.observe import module_names
from plait.inspect.observe.module_names import module_places, name_of_key, path_in_program, scope_between
from tests.sampling import slow_but

LENGTH = 3


@pytest.fixture(autouse=True)
def names_in_the_key():
    """JAX leaves names out of the key of its cache, so an equal program that was compiled before would give its own."""
    before = jax.config.jax_compilation_cache_include_metadata_in_key
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", before)


class Part(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return jnp.tanh(self.linear(x))


class Net(nnx.Module):
    def __init__(self, through=lambda part, x: part(x)):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.parts = [Part(rngs) for _ in range(LENGTH)]
        self.tied = nnx.Dict(again=self.first)
        self.through = through

    def __call__(self, x):
        x = self.tied["again"](self.first(x))
        for part in self.parts:
            x = self.through(part, x)
        return x


def names_of(f, *args):
    """The names of operations in the compiled program."""
    return set(re.findall(r'op_name="(jit[^"]*)"', nnx.jit(f).lower(*args).compile().as_text()))


def places_of(f, *args, model=None):
    """The modules that operations of the traced program belong to."""
    known = ModuleOperations(path for path, _ in module_places([args[0] if model is None else model], list))
    return {each.path for each in known.of(nnx.jit(f).trace(*args).jaxpr, choose=list)}


def loss(model, x):
    return model(x).sum()


PARTS = {("parts", i) for i in range(LENGTH)} | {("parts", i, "linear") for i in range(LENGTH)}

THROUGH = {
    "a call": lambda part, x: part(x),
    "remat": nnx.remat(lambda part, x: part(x)),
    "remat of the method": lambda part, x: nnx.remat(Part.__call__)(part, x),
    "vmap": nnx.vmap(lambda part, x: part(x), in_axes=(None, 0)),
    "scan": lambda part, x: nnx.scan(
        lambda x, part: part(x), length=2, in_axes=(nnx.Carry, None), out_axes=nnx.Carry
    )(x, part),
    "cond": lambda part, x: nnx.cond(x.sum() > 0, lambda part, x: part(x), lambda part, x: x, part, x),
    "jit": nnx.jit(lambda part, x: part(x)),
    "jit of the method": lambda part, x: nnx.jit(Part.__call__)(part, x),
    "remat of scan": nnx.remat(lambda part, x: THROUGH["scan"](part, x)),
}  # fmt: skip


@pytest.mark.parametrize("through", slow_but(["a call", "remat", "scan", "cond"], THROUGH))
def test_each_module_is_named_under_every_transform(through):
    """D12: also where JAX traces one function for several modules."""
    found = places_of(lambda model, x: nnx.value_and_grad(loss)(model, x), Net(THROUGH[through]), jnp.ones((2, 4)))
    assert found >= {("first",), *PARTS}
    assert found <= {(), ("first",), *PARTS}


def test_several_models_are_told_apart_by_the_names_of_the_arguments():
    def step(generator, critic, x):
        return critic(generator(x))

    names = names_of(step, Net(), Net(), jnp.ones((2, 4)))
    assert "jit(step)/critic/parts/2/linear/dot_general" in names
    assert "jit(step)/generator/parts/2/linear/dot_general" in names


def test_several_modules_of_an_inner_program_are_told_apart_by_where_they_come_from():
    inner = nnx.jit(lambda one, other, x: one(other(x)))
    names = names_of(lambda model, x: inner(model.parts[0], model.parts[1], x), Net(), jnp.ones((2, 4)))
    assert "jit(<lambda>)/{one=parts|0,other=parts|1}/jit(<lambda>)/other/linear/dot_general" in names


class Calls(Part):
    def __call__(self, x):
        return self.other(super().__call__(x))


def test_a_module_that_belongs_to_another_one_is_named_from_there():
    model = nnx.Dict(a=Part(nnx.Rngs(0)), z=Calls(nnx.Rngs(1)))
    model.z.other = model.a.linear
    names = names_of(lambda model, x: model.z(x), model, jnp.ones((2, 4)))
    assert "jit(<lambda>)/z/../a/linear/dot_general" in names
    assert places_of(lambda model, x: model.z(x), model, jnp.ones((2, 4))) >= {("z", "linear"), ("a", "linear")}


def test_the_program_is_the_same_but_for_its_names(monkeypatch):
    """D12: nothing that decides what runs, or what a cache is asked for, has names in it."""
    model, x = Net(THROUGH["remat"]), jnp.ones((2, 4))

    def lowered():
        return nnx.jit(lambda model, x: nnx.value_and_grad(loss)(model, x)).lower(model, x)

    named = lowered()
    monkeypatch.setattr(hooks, "around_body", {})
    assert named.as_text() == lowered().as_text()
    assert "parts/1" in named.as_text(debug_info=True)
    assert "parts/1" not in lowered().as_text(debug_info=True)


def test_one_function_for_equal_blocks_is_still_traced_once():
    """Call.kept: the methods that stand in for those of a class are the same ones in each trace."""
    traces = []

    class Counted(Part):
        def __call__(self, x):
            traces.append(x.shape)
            return super().__call__(x)

    model = Net(lambda part, x: nnx.remat(Counted.__call__)(part, x))
    model.parts = [Counted(nnx.Rngs(0)) for _ in range(LENGTH)]
    step = nnx.jit(lambda model, x: model(x))
    before = dict(vars(Counted))
    for rows in (2, 5, 2):
        step(model, jnp.ones((rows, 4)))
    assert traces == [(2, 4), (5, 4)]
    nnx.jit(lambda model, x: 2 * model(x))(model, jnp.ones((2, 4)))
    assert len(traces) == 2  # another program that asks for the same recomputed block
    assert dict(vars(Counted)) == before
    assert not hooks.observers


def test_nothing_is_named_outside_of_a_trace():
    class Looks(Part):
        def __call__(self, x):
            seen.append(path_in_program(self))
            return x

    seen: list = []
    model = nnx.Dict(inner=Looks(nnx.Rngs(0)))
    model.inner(jnp.ones(4))
    nnx.vmap(lambda model, x: model.inner(x), in_axes=(None, 0))(model, jnp.ones((2, 4)))
    nnx.jit(lambda model, x: model.inner(x))(model, jnp.ones(4))
    assert seen == [None, None, ("inner",)]


def test_an_error_ends_the_names():
    class Fails(Part):
        def __call__(self, x):
            raise ZeroDivisionError

    model = nnx.Dict(inner=Fails(nnx.Rngs(0)))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            nnx.jit(lambda model: model.inner(1.0))(model)
    assert path_in_program(model) is None
    assert "wrapper" not in repr(Fails.__call__)


KEYS = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b", "with/slash", "(x)"]))
PATHS = st.lists(KEYS, max_size=4).map(tuple)


@given(st.lists(PATHS, min_size=1, max_size=5))
def test_a_way_of_scopes_leads_to_the_last_module(paths):
    """D12: scopes that are joined, as JAX joins them, give the path of the module that the last one was opened for."""
    known = ModuleOperations(paths)
    scopes = [scope_between(here, there) for here, there in zip([(), *paths], paths, strict=False) if here != there]
    place = known._entered(_Place(), _steps_of([(scope, False) for scope in scopes]))
    assert place.keys == tuple(map(name_of_key, paths[-1]))


JVP, TRANSPOSE, VMAP = ("jvp", True), ("transpose", True), ("vmap", True)


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ([TRANSPOSE, JVP, "a/0", JVP, "a/0", "rematted_computation", "norm"], ("a", "0", "norm")),
        ([TRANSPOSE, JVP, "a", "0", JVP, "a/0", "norm"], ("a", "0", "norm")),
        ([JVP, VMAP, "a/0", "norm"], ("a", "0", "norm")),
        ([JVP, "a/0", "user's"], ("a", "0")),
        ([JVP], ()),
        ([JVP, "a/0/norm", "../../1"], ("a", "1")),
    ],
)
def test_names_of_derivatives_and_of_others(scopes, expected):
    known = ModuleOperations([("a", 0), ("a", 0, "norm"), ("a", 1)])
    steps = _steps_of([(each, False) if isinstance(each, str) else each for each in scopes])
    assert known._entered(_Place(), steps).keys == expected


# Captured models ------------------------------------------------------------------------------------------------------

MODEL = Net()


def apply_global(x):
    return MODEL(x)


def closures(model):
    """Functions of an array that capture a model."""
    inner = nnx.remat(lambda x: model(x))
    return {
        "a variable of the function around": lambda x: model(x),
        "a partial": functools.partial(lambda model, x: model(x), model),
        "a container": (lambda models: lambda x: models["only"](x))({"only": model}),
        "an inner transform": lambda x: inner(x),
        "a gradient": lambda x: nnx.grad(lambda x: model(x).sum())(x),
        "an inner program": lambda x: nnx.jit(lambda x: model(x))(x),
        "an inner program of a part": lambda x: nnx.jit(lambda part, x: part(x))(model.parts[1], model(x)),
    }


def captured_names(f):
    with warnings.catch_warnings():  # of the capture, where jit itself sees it
        warnings.simplefilter("ignore", nnx.errors.CapturedModelWarning)
        return names_of(f, jnp.ones((2, 4)))


@pytest.mark.parametrize("how", closures(MODEL))
def test_a_captured_model_is_named_as_one_that_is_passed(how):
    """D12."""
    with warnings.catch_warnings():  # of the capture, where jit itself sees it
        warnings.simplefilter("ignore", nnx.errors.CapturedModelWarning)
        assert places_of(closures(Net())[how], jnp.ones((2, 4)), model=MODEL) >= {("first",), *PARTS}


def test_a_global_model_is_named_too():
    assert "jit(apply_global)/parts/2/linear/dot_general" in captured_names(apply_global)
    assert "jit(<lambda>)/parts/2/linear/dot_general" in captured_names(lambda x: apply_global(x))


def test_a_captured_model_beside_an_argument_is_named_by_its_variable():
    teacher = Net()

    def distil(student, x):
        return student(x) - teacher(x)

    with pytest.warns(nnx.errors.CapturedModelWarning):
        names = names_of(distil, Net(), jnp.ones((2, 4)))
    assert {"jit(distil)/parts/2/linear/dot_general", "jit(distil)/teacher/parts/2/linear/dot_general"} <= names


def test_several_captured_models_are_told_apart():
    first, second = Net(), Net()
    names = captured_names(lambda x: first(second(x)))
    assert {"jit(<lambda>)/first/first/dot_general", "jit(<lambda>)/second/first/dot_general"} <= names


def test_a_captured_model_costs_nothing_per_step_and_changes_no_program(monkeypatch):
    """The names are looked for while a program is traced, and never again."""
    model, x, asked = Net(), jnp.ones((2, 4)), []
    find = module_names.named_captures
    monkeypatch.setattr(module_names, "named_captures", lambda f: asked.append(f) or find(f))
    step = nnx.jit(lambda x: model(x))
    with pytest.warns(nnx.errors.CapturedModelWarning):
        step(x)
    step(x), step(x)
    assert len(asked) == 1
    before = dict(vars(Net))
    with pytest.warns(nnx.errors.CapturedModelWarning):
        named = nnx.jit(lambda x: model(x)).lower(x)
    monkeypatch.setattr(hooks, "around_body", {})
    with pytest.warns(nnx.errors.CapturedModelWarning):
        plain = nnx.jit(lambda x: model(x)).lower(x)
    assert named.as_text() == plain.as_text()
    assert "parts/1" in named.as_text(debug_info=True)
    assert dict(vars(Net)) == before
