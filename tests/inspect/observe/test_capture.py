"""Sowing, perturbing, and capturing what was sown."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

import plait as nnx
from plait.errors import ArgumentError, ArgumentTypeError, TraceContextError
from plait.inspect.observe.capture import recording


class Inner(nnx.Module):
    def __init__(self, scale):
        self.scale = nnx.Param(jnp.asarray(scale))

    def __call__(self, x):
        self.kept = self.sow(nnx.Intermediate, "input", x)
        return self.helper(self.perturb("probe", x)) * self.scale

    def helper(self, x):
        return x + 1


class Outer(nnx.Module):
    def __init__(self):
        self.first = Inner(2.0)
        self.rest = [Inner(3.0)]

    def __call__(self, x):
        x = self.rest[0](self.first(x))
        self.sow("intermediates", "total", x)
        self.sow(nnx.Intermediate, "total", x, reduce_fn=lambda old, new: (*old, new), init_fn=tuple)
        return x


class Special(nnx.Intermediate):
    pass


X = jnp.asarray(1.0)


def contents(state):
    return jax.tree.map(float, nnx.to_pure_dict(state))


def test_capture_returns_what_was_sown_and_leaves_nothing():
    """D1, D3."""
    model = Outer()
    before = nnx.graphdef(model)
    y, seen = nnx.capture(model, nnx.Intermediate)(X)
    assert y == 15
    assert contents(seen) == {"first": {"input": (1,)}, "rest": {0: {"input": (4,)}}, "total": (15, 15)}
    assert all(type(leaf) is nnx.Intermediate for _, leaf in nnx.to_flat_state(seen))
    del model.first.kept, model.rest[0].kept
    assert nnx.graphdef(model) == before


@pytest.mark.parametrize("method", ["sow", "perturb"])
@pytest.mark.parametrize("capture_noop", [None, False, True])
def test_a_noop_outside_capture_stores_nothing(method, capture_noop):
    """D1, D2: as Flax 0.12.12; inside ``capture`` the keyword changes nothing."""

    class Records(nnx.Module):
        def __call__(self, x):
            if method == "sow":
                return self.sow(nnx.Intermediate, "seen", x, capture_noop=capture_noop)
            return self.perturb("seen", x, capture_noop=capture_noop)

    model = Records()
    warns = method == "sow" and not capture_noop
    with (
        pytest.warns(DeprecationWarning, match=r"sow outside of plait\.capture") if warns else contextlib.nullcontext()
    ):
        out = model(X)
    assert hasattr(model, "seen") is not bool(capture_noop)
    assert out == (not capture_noop if method == "sow" else X)
    model = Records()
    out, seen = nnx.capture(model, nnx.Intermediate if method == "sow" else nnx.Perturbation)(X)
    assert (list(seen), hasattr(model, "seen"), bool(out)) == (["seen"], False, True)


def test_a_kind_that_is_not_captured_is_not_kept():
    """D1: sow returns whether the value was kept."""
    model = Inner(2.0)
    y, probes = nnx.capture(model, nnx.Perturbation)(X)
    assert model.kept is False
    assert contents(probes) == {"probe": 0}
    assert nnx.capture(model)(X) == y == 4
    nnx.capture(model, nnx.Intermediate)(X)
    assert model.kept is True


def test_one_state_per_kind_and_the_first_match_wins():
    """D1, D3: exactly the given kinds are kept; list subclasses first."""

    class Model(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "a", x)
            self.sow(Special, "b", x)
            return self.perturb("c", x)

    keys = lambda *states: [list(state) for state in states]
    assert keys(*nnx.capture(Model(), Special, nnx.Perturbation, nnx.Intermediate)(X)[1:]) == [["b"], ["c"], ["a"]]
    assert keys(*nnx.capture(Model(), nnx.Intermediate, Special)(X)[1:]) == [["a", "b"], []]
    assert keys(*nnx.capture(Model(), nnx.Intermediate)(X)[1:]) == [["a"]]


def test_what_can_be_captured():
    """D3: a module, a bound method, a function of a module, or a decorator."""
    model = Inner(2.0)
    expected = {"input": (1,)}
    assert contents(nnx.capture(model, nnx.Intermediate)(X)[1]) == expected
    assert contents(nnx.capture(model.__call__, nnx.Intermediate)(X)[1]) == expected

    def call(model, x):
        "Call it."
        return model(x)

    wrapped = nnx.capture(call, nnx.Intermediate)
    assert contents(wrapped(model, X)[1]) == expected
    assert (wrapped.__name__, wrapped.__doc__) == ("call", "Call it.")

    @nnx.capture(nnx.Perturbation, nnx.Intermediate)
    def decorated(model, x):
        return model(x)

    _, probes, seen = decorated(model, X)
    assert (contents(seen), contents(probes)) == (expected, {"probe": 0})


def test_perturbations_go_in_and_their_gradient_comes_out():
    """D2, D3: the gradient with respect to a probe is the gradient at its place."""
    model = Outer()
    _, probes = nnx.capture(model, nnx.Perturbation)(X)
    assert contents(probes) == {"first": {"probe": 0}, "rest": {0: {"probe": 0}}}

    def loss(probes):
        return nnx.capture(nnx.merge(*nnx.split(model)), init=probes)(X)

    gradients = jax.grad(loss)(probes)
    assert contents(gradients) == {"first": {"probe": 6}, "rest": {0: {"probe": 3}}}
    shifted = jax.tree.map(lambda x: x + 1, probes)
    y, seen = nnx.capture(model, nnx.Intermediate, init=shifted)(X)
    assert y == 24
    assert seen["first"]["input"].value == (1.0,)
    assert contents(nnx.capture(model, nnx.Perturbation, init=shifted)(X)[1]) == contents(shifted)


def test_method_outputs_are_sown_under_the_name_of_the_method():
    """D3: every public method and __call__; nothing stays on the classes."""
    own = dict(vars(Inner))
    _, seen = nnx.capture(Outer(), nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    assert contents(seen) == {
        "__call__": (15,),
        "first": {"input": (1,), "helper": (2,), "__call__": (4,)},
        "rest": {0: {"input": (4,), "helper": (5,), "__call__": (15,)}},
        "total": (15, 15),
    }
    assert dict(vars(Inner)) == own
    assert nnx.capture(Outer(), method_outputs=nnx.Intermediate)(X) == 15
    _, seen = nnx.capture(Inner(2.0).helper, nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    assert contents(seen) == {"helper": (2,)}


def test_an_overridden_method_is_sown_once():
    """D3: what super() returns is not the output of the method."""

    class Child(Inner):
        def helper(self, x):
            return super().helper(x) + 10

    _, seen = nnx.capture(Child(1.0), nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    assert contents(seen) == {"input": (1,), "helper": (12,), "__call__": (12,)}
    assert "__call__" not in vars(Child)
    with_both = nnx.List([Child(1.0), Inner(1.0)])
    run = nnx.capture(lambda m, x: m[1](m[0](x)), nnx.Intermediate, method_outputs=nnx.Intermediate)
    assert contents(run(with_both, X)[1]) == {
        0: {"input": (1,), "helper": (12,), "__call__": (12,)},
        1: {"input": (12,), "helper": (13,), "__call__": (13,)},
    }


class Failing(nnx.Module):
    def __init__(self):
        self.inner = Inner(1.0)

    def __call__(self, x):
        self.inner(x)
        raise RuntimeError("failed")


def test_nothing_stays_behind_after_an_error():
    """D3."""
    model = Failing()
    own = dict(vars(Failing)), dict(vars(Inner))
    with pytest.raises(RuntimeError, match="failed"):
        nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    assert set(vars(model)) == {"inner"}
    assert set(vars(model.inner)) == {"scale", "kept"}
    assert (dict(vars(Failing)), dict(vars(Inner))) == own


def test_a_capture_inside_a_capture():
    """D3: the inner one has its own values, the outer one goes on."""

    class Model(nnx.Module):
        def __init__(self):
            self.inner = Inner(1.0)

        def __call__(self, x):
            y, seen = nnx.capture(self.inner, nnx.Intermediate)(x)
            self.sow(nnx.Intermediate, "count", len(seen))
            return self.inner(y)

    _, seen = nnx.capture(Model(), nnx.Intermediate)(X)
    assert contents(seen) == {"count": (1,), "inner": {"input": (2,)}}


def test_a_shared_module_is_at_its_first_path():
    """D3, G22."""
    model = nnx.Dict(a=Inner(1.0))
    model.b = model.a
    run = nnx.capture(lambda m, x: m.b(m.a(x)), nnx.Intermediate)
    assert contents(run(model, X)[1]) == {"a": {"input": (1, 2)}}


def test_capture_goes_through_jit():
    """D3: around plait's jit and inside JAX's."""
    model = Inner(2.0)
    y, seen = nnx.capture(lambda m, x: nnx.jit(lambda m, x: m(x))(m, x), nnx.Intermediate)(model, X)
    assert (float(y), contents(seen)) == (4, {"input": (1,)})
    assert "_pytree__sown" not in vars(model)
    graphdef, state = nnx.split(Inner(2.0))

    @jax.jit
    def inside(state, x):
        return nnx.capture(nnx.merge(graphdef, state), nnx.Intermediate)(x)

    assert contents(inside(state, X)[1]) == {"input": (1,)}


def test_a_module_of_another_trace_is_refused():
    """G64."""
    model = Inner(2.0)
    with pytest.raises(TraceContextError, match="Inner"):
        jax.jit(nnx.capture(model, nnx.Intermediate))(X)
    assert "_pytree__sown" not in vars(model)

    def closing_over(model, x):
        return jax.jit(lambda x: model.sow(nnx.Intermediate, "h", x))(x)

    with pytest.raises(TraceContextError, match="sow a value in an Inner"):
        nnx.capture(closing_over, nnx.Intermediate)(model, X)


# Without capture ------------------------------------------------------------------------------------------------------


def test_outside_values_become_attributes_with_a_warning():
    """D1."""
    model = Inner(2.0)
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=r"plait\.capture\(model, plait\.Intermediate\)") as seen:
            assert model(X) == 4
    assert seen[0].filename == __file__
    assert contents(nnx.state(model, nnx.Intermediate)) == {"input": (1, 1), "probe": 0}
    assert type(model.input) is nnx.Intermediate


def test_values_can_be_reduced_in_another_way():
    """D1."""

    class Model(nnx.Module):
        def __call__(self, x):
            for n in range(3):
                self.sow(nnx.Intermediate, "sum", x + n, reduce_fn=lambda old, new: old + new, init_fn=lambda: 0)
            return x

    assert contents(nnx.capture(Model(), nnx.Intermediate)(X)[1]) == {"sum": 6}


def test_collection_names_stand_for_kinds():
    """D1, D2."""

    class Model(nnx.Module):
        def __call__(self, x):
            self.sow("intermediates", "h", x)
            return self.perturb("p", x, "perturbations")

    _, probes, seen = nnx.capture(Model(), nnx.Perturbation, nnx.Intermediate)(X)
    assert (contents(probes), contents(seen)) == ({"p": 0}, {"h": (1,)})


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    [("Intermediate",), ("Perturbation",), ("Perturbation", "Intermediate"), ("Intermediate", "outputs"), ()],
    ids=str,
)
def test_flax_captures_the_same(options):
    """D3."""
    flax_nnx = pytest.importorskip("flax.nnx")
    answers = []
    for library in (nnx, flax_nnx):

        class Model(library.Module):
            def __call__(self, x, library=library):
                self.sow(library.Intermediate, "h", x)
                self.sow(library.Intermediate, "h", x + 1)
                return self.double(self.perturb("p", x))

            def double(self, x):
                return 2 * x

        kinds = [getattr(library, name) for name in options if name != "outputs"]
        outputs = library.Intermediate if "outputs" in options else None
        result = library.capture(library.Dict(m=Model()).m, *kinds, method_outputs=outputs)(X)
        y, *states = result if kinds else (result,)
        answers.append([float(y), *(jax.tree.map(float, library.to_pure_dict(state)) for state in states)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "only", ["shared", "blocks[0]", lambda path, module: path == ("shared",)], ids=["second", "first", "function"]
)
@pytest.mark.parametrize("way", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_a_module_in_several_places_is_chosen_by_any_of_its_paths(only, way):
    """D3: as with `plait.select`; it is recorded once, under its first path."""

    class Model(nnx.Module):
        def __init__(self):
            self.blocks = [nnx.Linear(2, 2, rngs=nnx.Rngs(seed)) for seed in range(2)]
            self.shared = self.blocks[0]

        def __call__(self, x):
            return self.shared(self.blocks[1](x))

    look = nnx.capture(lambda model, x: model(x), nnx.Intermediate, method_outputs=nnx.Intermediate, only=only)
    y, seen = way(look)(Model(), jnp.ones((1, 2)))
    assert nnx.to_flat_state(seen).paths == (("blocks", 0, "__call__"),)
    assert jnp.array_equal(seen["blocks"][0]["__call__"][0], y)


class Probed(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "y", x)
        return self.perturb("p", x) ** 2


def gradients_and_sown(nnx, model, x):
    """The idiom of Flax: what was sown beside the gradients at the perturbations."""
    perturbations = nnx.capture(model, nnx.Perturbation)(x)[1]

    def loss(model, perturbations):
        return nnx.capture(model, nnx.Intermediate, init=perturbations)(x)

    grads, sown = nnx.grad(loss, argnums=1, has_aux=True)(model, perturbations)
    return nnx.merge_state(grads, sown)


def test_what_was_preset_is_returned_only_if_asked_for():
    """D3: else it hides the gradients, which have the same paths."""
    model = Probed()
    preset = nnx.capture(model, nnx.Perturbation)(X)[1]
    assert list(nnx.capture(model, nnx.Intermediate, init=preset)(X)[1]) == ["y"]
    assert list(nnx.capture(model, nnx.Perturbation, init=preset)(X)[1]) == ["p"]
    both = nnx.capture(model, nnx.Perturbation, nnx.Intermediate, init=preset)(X)[1:]
    assert [[*each] for each in both] == [["p"], ["y"]]
    merged = gradients_and_sown(nnx, model, jnp.asarray(3.0))
    assert (merged["p"][...].item(), merged["y"].value[0].item()) == (6.0, 3.0)


def test_a_preset_value_keeps_its_kind_and_what_is_sown_follows_it():
    preset = nnx.State({"y": nnx.Intermediate((jnp.asarray(1.0),))})
    sown = nnx.capture(Probed(), nnx.Intermediate, init=preset)(jnp.asarray(2.0))[1]["y"]
    assert (type(sown), [*map(float, sown.value)]) == (nnx.Intermediate, [1.0, 2.0])


def test_what_is_recorded_can_be_read_during_the_calls():
    model, called = Probed(), []

    def observer(module, method, call):
        called.append((module, method))
        return call()

    with recording(model, nnx.Intermediate, observer) as recorded:
        counts = [len(recorded())]
        for _ in range(2):
            model(X)
            ((path, sown),) = recorded()
            counts.append(len(sown.value))
    assert (counts, path) == ([0, 1, 2], ("y",))
    assert called == [(model, "__call__")] * 2


@pytest.mark.oracle
def test_flax_returns_the_same_beside_what_was_preset():
    """D3."""
    flax_nnx = pytest.importorskip("flax.nnx")

    class Theirs(flax_nnx.Module):
        __call__ = Probed.__call__

    def sow(self, kind, name, x):
        return super(Theirs, self).sow(flax_nnx.Intermediate, name, x)

    Theirs.sow = sow
    x = jnp.asarray(3.0)
    ours, theirs = gradients_and_sown(nnx, Probed(), x), gradients_and_sown(flax_nnx, Theirs(), x)
    assert nnx.to_pure_dict(ours) == flax_nnx.to_pure_dict(theirs)


VALUES_ONLY = {
    "jit": lambda f: nnx.jit(f, graph_updates=False),
    "jit in tree mode": lambda f: nnx.jit(f, graph=False),
    "remat": lambda f: nnx.remat(f, graph_updates=False),
    "grad": lambda f: nnx.grad(lambda m, x: f(m, x).sum(), argnums=1, graph_updates=False),
    "vjp": lambda f: lambda m, x: nnx.vjp(f, m, x, graph_updates=False)[0],
    "cond": lambda f: lambda m, x: nnx.cond(True, f, f, m, x, graph_updates=False),
    "vmap": lambda f: nnx.vmap(f, in_axes=(None, 0), graph_updates=False),
    "scan": lambda f: lambda m, x: nnx.scan(lambda c, x: (c, f(c, x)), graph_updates=False)(m, x),
}
REFUSED = {
    "vmap": (ArgumentError, r"at +m\.y"),
    "scan": (ArgumentTypeError, r"at +c\.y"),
}


@pytest.mark.parametrize("name", VALUES_ONLY)
def test_what_is_sown_comes_out_where_only_values_do(name):
    """As in Flax, also perturbations, and nothing else that the function sets. Where it would depend on the example or
    the iteration, it is an error."""

    class Sower(nnx.Module):
        def __init__(self):
            self.steps, self.seen, self.parts = nnx.Variable(jnp.array(0)), 0, [nnx.Param(jnp.ones(2))]

        def __call__(self, x):
            self.sow(nnx.Intermediate, "y", x)
            self.steps[...] += 1
            self.steps.set_metadata("tag", "new")
            self.seen, self.other = 1, nnx.Dict(a=nnx.Param(x))
            self.parts.append(2)
            return self.perturb("z", x)

    run = nnx.capture(VALUES_ONLY[name](lambda m, x: m(x)), nnx.Perturbation, nnx.Intermediate)
    model, x = Sower(), jnp.arange(2.0)
    before = nnx.graphdef(model)
    if name in REFUSED:
        kind, text = REFUSED[name]
        with pytest.raises(kind, match=text):
            run(model, x)
    else:
        _, probes, seen = run(model, x)
        assert (seen["y"].value[0].tolist(), probes["z"].value.tolist()) == ([0.0, 1.0], [0.0, 0.0])
        assert model.steps.value == 1
    assert nnx.graphdef(model) == before
