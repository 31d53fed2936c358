"""``grad`` and ``value_and_grad``: numbers, updates, selections, errors. (rules U21, U25, U30, X13, X14)"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.test_util import check_grads

import plait
from plait.errors import FilterTypeError, NothingSelectedWarning, SharingError
from tests.oracles import describe
from tests.sampling import slow_but
from tests.strategies import Leafy, Node


class Net(plait.Module):
    """Two layers with one tied matrix, statistics, and a random stream."""

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 2)
        self.enc = Leafy(w=plait.Param(jax.random.normal(keys[0], (3, 3)), note="tied"), b=plait.Param(jnp.ones(3)))
        self.layers = [Leafy(w=self.enc.w, b=plait.Param(jax.random.normal(keys[1], (3,))))]
        self.mean = plait.BatchStat(jnp.zeros(3))
        self.calls = plait.BatchStat(jnp.int32(0))
        self.scale = jnp.float32(2)

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        for layer in (self.enc, *self.layers):
            x = jnp.tanh(x @ layer.w.value + layer.b.value[None])
        self.mean.value = 0.5 * self.mean.value + 0.5 * x.mean(0)
        return x * self.scale


X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def loss(net, x):
    return (net(x) ** 2).sum()


def pure_loss(params, x):
    """The same mathematics, as a function of arrays."""
    w, first, second = params
    x = jnp.tanh(x @ w + first[None])
    x = jnp.tanh(x @ w + second[None])
    return ((x * 2) ** 2).sum()


def arrays(net):
    return net.enc.w.value, net.enc.b.value, net.layers[0].b.value


def test_the_numbers_are_those_of_plain_jax():
    """X13: tied weights get the sum over both places; paths and classes are those of the model."""
    net = Net()
    value, grads = plait.value_and_grad(loss)(net, X)
    expected, (w, first, second) = jax.value_and_grad(pure_loss)(arrays(net), X)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert isinstance(grads, plait.State)
    assert grads.flat_state().paths == (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))
    for leaf, array in zip(grads.flat_state().leaves, (first, w, second), strict=True):
        assert isinstance(leaf, plait.Param)
        np.testing.assert_allclose(leaf.value, array, rtol=1e-5)
    assert grads["enc"]["w"].note == "tied"


def test_the_gradient_agrees_with_finite_differences():
    """X13."""
    net = Net()
    graphdef, params, rest = plait.split(net, plait.Param, ...)
    check_grads(lambda p: loss(plait.merge(graphdef, p, rest), X), (params,), order=1, modes=["rev"], rtol=2e-2)
    got = plait.grad(loss)(net, X)
    expected = jax.grad(lambda p: loss(plait.merge(graphdef, p, rest), X))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


def test_updates_made_inside_come_back():
    """U30: counters and statistics, as eager Python leaves them; the parameters stay untouched."""
    net, eager = Net(), Net()
    weights = [variable.get_raw_value() for variable in (net.enc.w, net.enc.b)]
    for _ in range(2):
        plait.grad(loss)(net, X)
        loss(eager, X)
    assert (int(net.calls.value), [net.enc.w.get_raw_value(), net.enc.b.get_raw_value()] == weights) == (2, True)
    np.testing.assert_allclose(net.mean.value, eager.mean.value, rtol=1e-6)
    assert [type(value) for value in (net.mean.value, net.calls.value)] == [type(jnp.ones(1))] * 2


STRUCTURAL = {
    "new attribute": lambda m: setattr(m, "z", plait.Cache(jnp.ones(2))),
    "sown": lambda m: m.layers.append(plait.Cache(jnp.ones(2))),
    "static": lambda m: setattr(m, "steps", 1),
    "metadata": lambda m: m.mean.set_metadata(note=1),
    "aliased": lambda m: setattr(m, "again", m.enc),
    "deleted": lambda m: delattr(m, "scale"),
}


@pytest.mark.parametrize("case", STRUCTURAL)
def test_structural_changes_come_back(case):
    """U18, U30: eager, and under jit."""
    change = STRUCTURAL[case]

    def f(net, x):
        out = loss(net, x)
        change(net)
        return out

    eager, net, jitted = Net(), Net(), Net()
    f(eager, X)
    plait.grad(f)(net, X)
    plait.jit(plait.grad(f))(jitted, X)
    structure = plait.graphdef(eager)
    assert plait.graphdef(net) == structure
    assert plait.graphdef(jitted) == structure
    assert net.enc.w is net.layers[0].w


def test_aux_comes_back_with_its_objects():
    """X14: ((value, aux), grads); objects in aux are the caller's own."""
    net = Net()

    def f(net, x):
        return loss(net, x), {"net": net, "new": Node(of=net.enc), "x": x}

    (value, aux), grads = plait.value_and_grad(f, has_aux=True)(net, X)
    assert (aux["net"] is net, aux["new"].of is net.enc) == (True, True)
    assert aux["x"].shape == X.shape
    grads_again, aux = plait.grad(f, has_aux=True)(net, X)
    assert aux["net"] is net
    assert describe(grads.flat_state().leaves) == describe(grads_again.flat_state().leaves)
    np.testing.assert_allclose(value, pure_loss(arrays(net), X), rtol=1e-6)


def mixed(net, v, tree, x):
    return (net(x) ** 2).sum() * v.value + (tree["a"] ** 2).sum() + tree["b"][0] * v.value


SELECTIONS = {
    "a module": (0, lambda g: g.flat_state().paths, (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))),
    "negative": (-4, lambda g: g.flat_state().paths, (("enc", "b"), ("enc", "w"), ("layers", 0, "b"))),
    "a variable": (1, type, plait.Param),
    "a pytree": (2, lambda g: jax.tree.map(jnp.shape, g), {"a": (2,), "b": [()]}),
    "an array": (3, jnp.shape, (2, 3)),
    "a tuple of one": ((1,), lambda g: [type(part) for part in g], [plait.Param]),
    "several": ((2, 0), lambda g: [type(part) for part in g], [dict, plait.State]),
    "by type": (plait.DiffState(0, plait.BatchStat), lambda g: list(g), ["mean"]),
    "by path": (
        plait.DiffState(0, plait.PathContains("layers")),
        lambda g: g.flat_state().paths,
        (("layers", 0, "b"),),
    ),
    "pairs from the front": (plait.DiffState(-4, plait.PathContains("layers")), lambda g: list(g), ["layers"]),
    "arrays of a module": (plait.DiffState(0, lambda path, value: path == ("scale",)), lambda g: g["scale"].shape, ()),
    "mixed": ((plait.DiffState(0, plait.PathContains("enc")), 1), lambda g: [len(g[0]), type(g[1])], [1, plait.Param]),
}


@pytest.mark.parametrize("case", slow_but([*SELECTIONS][::2], SELECTIONS))
def test_what_is_differentiated_is_chosen_by_argnums(case):
    """X13: positions and DiffStates; the gradient has the shape of what was chosen."""
    argnums, look, expected = SELECTIONS[case]
    if case == "by type":  # statistics that are integers have no gradient
        argnums = plait.DiffState(0, lambda path, value: path == ("mean",))
    args = Net(), plait.Param(jnp.float32(3)), {"a": jnp.ones(2), "b": [jnp.float32(1)]}, X
    assert look(plait.grad(mixed, argnums=argnums)(*args)) == expected
    assert look(plait.jit(plait.grad(mixed, argnums=argnums))(*args)) == expected


@pytest.mark.parametrize("filter", [{"a": 1}, 42, [{}], (plait.Param, {1})])
def test_a_diffstate_refuses_what_is_no_filter(filter):
    """X2: when it is made."""
    with pytest.raises(FilterTypeError, match="cannot be used as a filter"):
        plait.DiffState(0, filter)


NOTHING = {
    "a filter": (plait.DiffState(0, plait.Cache), r"plait\.Cache.*so the gradient is empty.*argument net"),
    "a word": (
        plait.DiffState(0, plait.PathContains("krenel")),
        r"plait\.PathContains\('krenel'\).*3 Param, 2 BatchStat",
    ),
    "one of two": ((1, plait.DiffState(0, plait.Cache)), r"plait\.Cache.*argument net"),
}


@pytest.mark.parametrize("case", NOTHING)
@pytest.mark.parametrize("lift", [lambda f: f, plait.jit])
def test_a_filter_that_selects_nothing_gives_an_empty_gradient_and_a_warning(case, lift):
    """X13: silent in Flax."""
    argnums, message = NOTHING[case]
    args = Net(), plait.Param(jnp.float32(3)), {"a": jnp.ones(2), "b": [jnp.float32(1)]}, X
    with pytest.warns(NothingSelectedWarning, match=f"(?s)grad: the filter {message}") as caught:
        grads = lift(plait.grad(mixed, argnums=argnums))(*args)
    assert dict(grads[1] if isinstance(argnums, tuple) else grads) == {}
    assert caught[0].filename == __file__ or lift is plait.jit


def test_a_model_without_parameters_is_told_unless_another_argument_has_some():
    """X13."""
    drop, dense = plait.Dropout(0.5, rngs=plait.Rngs(0)), plait.Linear(2, 2, rngs=plait.Rngs(0))

    def f(drop, dense):
        return drop(dense(jnp.ones(2))).sum()

    with pytest.warns(NothingSelectedWarning, match=r"(?s)plait\.Param.*argument drop.*1 RngCount, 1 RngKey"):
        plait.value_and_grad(f)(drop, dense)
    assert dict(plait.grad(f, argnums=(0, 1))(drop, dense)[0]) == {}


def test_gradients_of_several_arguments_are_those_of_plain_jax():
    """X13."""
    a, b = Node(w=plait.Param(jnp.float32(3))), Node(w=plait.Param(jnp.float32(5)))
    f = lambda a, b, x: a.w.value**2 * b.w.value * x
    got = plait.grad(f, argnums=(2, 0, 1))(a, b, jnp.float32(2))
    assert [float(got[0]), float(got[1]["w"].value), float(got[2]["w"].value)] == [45.0, 60.0, 18.0]


def test_a_list_of_models_gives_a_list_of_states():
    """X13: containers keep their shape."""
    models = [Node(w=plait.Param(jnp.float32(3))), Node(w=plait.Param(jnp.float32(5)))]
    first, second = plait.grad(lambda ms: ms[0].w.value * ms[1].w.value)(models)
    assert (float(first["w"].value), float(second["w"].value)) == (5.0, 3.0)


def product(a, b):
    return a.w.value * b.w.value**2


def test_a_variable_shared_by_both_differentiated_arguments_is_counted_once():
    """U16: the first argument has the gradient, and it is the whole."""
    a = Node(w=plait.Param(jnp.float32(3)))
    first, second = plait.grad(product, argnums=(0, 1))(a, Node(w=a.w))
    assert (float(first["w"].value), len(second)) == (27.0, 0)


@pytest.mark.parametrize(
    ("argnums", "found"),
    [(0, "differentiated at the first, left alone"), (1, "left alone at the first, differentiated")],
)
def test_a_variable_under_two_treatments_is_an_error(argnums, found):
    """U25: both paths are named, and nothing ran."""
    a = Node(w=plait.Param(jnp.float32(3)))
    with pytest.raises(SharingError, match=rf"(?s)Inconsistent aliasing.*a\.w and b\.w .*Param.*{found}"):
        plait.grad(product, argnums=argnums)(a, Node(w=a.w))


def test_a_variable_shared_with_a_keyword_argument_is_under_two_treatments_too():
    """U25."""
    a = Node(w=plait.Param(jnp.float32(3)))
    with pytest.raises(SharingError, match=r"a\.w and b\[0\]\.w"):
        plait.grad(lambda a, *, b: a.w.value * b[0].w.value)(a, b=[Node(w=a.w)])


def test_keyword_arguments_are_not_differentiated_unless_argnums_means_them():
    """X1: a position that only a keyword can fill is resolved, as in the reference."""
    net = Net()
    grads = plait.grad(lambda net, *, x: loss(net, x))(net, x=X)
    assert len(grads.flat_state()) == 3
    assert len(plait.grad(loss)(x=X, net=net).flat_state()) == 3
    with pytest.raises(TypeError, match=r"found +argnums=0 and 0 positional"):
        plait.grad(lambda *, net, x: loss(net, x))(net=net, x=X)


VALUES_ONLY = [{"graph_updates": False}, {"graph": False}]


@pytest.mark.parametrize("mode", VALUES_ONLY, ids=str)
def test_where_only_values_are_carried_the_gradient_of_a_module_is_a_module(mode):
    """Section 10, U32: every leaf has a gradient; what was written is written, once; nothing else changes."""
    net, eager = untied(), untied()
    value, grads = plait.value_and_grad(loss, **mode)(net, X)
    expected = loss(eager, X)
    pure, static = plait.grad(loss, argnums=plait.DiffState(0, ...))(untied(), X), plait.graphdef(net)
    assert type(grads) is Net
    assert plait.graphdef(grads) == static
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plait.state(grads), pure)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(net.mean.value, eager.mean.value, rtol=1e-6)


def untied():
    """A net without sharing, and without an integer."""
    net = Net()
    net.layers[0].w = plait.Param(net.enc.w.value, note="tied")
    net.calls = plait.BatchStat(jnp.float32(0))
    return net


@pytest.mark.parametrize("mode", VALUES_ONLY, ids=str)
def test_where_only_values_are_carried_structure_is_not(mode):
    """U32."""
    net = untied()
    before = plait.graphdef(net)

    def f(net, x):
        net.z = plait.Cache(x)
        return loss(net, x), {"new": plait.Param(x.sum())}

    (_, aux), grads = plait.value_and_grad(f, has_aux=True, **mode)(net, X)
    assert plait.graphdef(net) == before
    assert type(aux["new"]) is plait.Param
    assert not hasattr(grads, "z")


def test_where_only_values_are_carried_containers_and_positions_are_as_in_jax():
    """X13: a dict of modules and arrays, a variable, an array; gradients of their own types."""
    args = {"m": Node(w=plait.Param(jnp.float32(3))), "s": jnp.float32(2)}, plait.Param(jnp.float32(5)), jnp.float32(7)
    f = lambda d, v, x: d["m"].w.value * d["s"] * v.value * x**2
    grads = plait.grad(f, argnums=(0, -1, 1), graph_updates=False)(*args)
    assert (type(grads[0]["m"]), type(grads[2])) == (Node, plait.Param)
    got = [grads[0]["m"].w.value, grads[0]["s"], grads[1], grads[2].value]
    np.testing.assert_allclose(got, [490, 735, 420, 294])
    with plait.set_graph_updates(False):
        assert type(plait.grad(lambda m: m.w.value)(args[0]["m"])) is Node


ERRORS = {
    "repeated": (
        lambda: plait.grad(loss, argnums=(0, plait.DiffState(0, plait.BatchStat))),
        ValueError,
        "0 repeated",
    ),
    "repeated from both ends": (lambda: plait.grad(loss, argnums=(0, -2))(Net(), X), ValueError, "0 repeated"),
    "not there": (lambda: plait.grad(loss, argnums=5)(Net(), X), TypeError, "argnums=5 and 2 positional"),
    "not there either": (lambda: plait.grad(loss, argnums=-5)(Net(), X), ValueError, "argnums=-5"),
    "a variable": (
        lambda: plait.grad(lambda v: v)(plait.Param(1.0)),
        TypeError,
        r"(?s)found +a Param.*variable\[...\]",
    ),
    "a filter without updates": (
        lambda: plait.grad(loss, argnums=plait.DiffState(0, plait.Param), graph_updates=False),
        ValueError,
        "(?s)does not accept a DiffState.*argnums.*graph_updates=True",
    ),
    "shared in a tree": (lambda: plait.grad(loss, graph=False)(Net(), X), ValueError, "(?s)tree mode.*duplicate"),
    "input returned without updates": (
        lambda: plait.grad(lambda m, x: (loss(m, x), m), has_aux=True, graph_updates=False)(untied(), X),
        ValueError,
        "return an input variable",
    ),
    "integers without updates": (
        lambda: plait.grad(lambda m: m.w.value, graph_updates=False)(Node(w=plait.Param(1.0), n=plait.Cache(1))),
        TypeError,
        "int32",
    ),
    "reduce_axes": (lambda: plait.grad(loss, reduce_axes=("batch",)), NotImplementedError, "reduce_axes"),
    "no pair": (lambda: plait.grad(loss, has_aux=True)(Net(), X), TypeError, r"(?s)pair.*\(output, aux\)"),
    "no function": (lambda: plait.grad(3), TypeError, "found +an int"),
    "bound method": (lambda: plait.grad(Net().__call__), ValueError, "bound method"),
    "no scalar": (
        lambda: plait.grad(lambda net, x: jnp.ones((3, 2)))(Net(), X),
        TypeError,
        r"a function that returns a scalar\n +found +an array of shape \(3, 2\)(?s:.*)\.mean\(\)",
    ),
    "two arrays": (
        lambda: plait.grad(lambda net, x: (loss(net, x), x))(Net(), X),
        TypeError,
        r"(?s)found +a tuple.*has_aux=True",
    ),
    "integers": (lambda: plait.grad(loss, argnums=plait.DiffState(0, ...))(Net(), X), TypeError, "int32"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_was_asked(case):
    """X13, section 7."""
    call, error, match = ERRORS[case]
    with pytest.raises(error, match=match):
        call()


def test_a_function_that_raises_changes_nothing():
    """U21."""
    net = Net()
    before, layers = describe(net), net.layers

    def f(net, x):
        loss(net, x)
        net.z = 1
        net.layers.append(1)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        plait.grad(f)(net, X)
    assert describe(net) == before
    assert net.layers is layers


def test_numpy_values_are_left_alone_or_replaced_never_edited():
    """U21, U30: a statistic that holds a NumPy array takes traced values."""
    held = np.zeros(3, np.float32)
    net = Net()
    net.mean.set_raw_value(held)

    def f(net, x):
        net.mean[...] = net(x).mean(0)
        return loss(net, x)

    plait.grad(f)(net, X)
    assert (isinstance(net.mean.value, jax.Array), held.tolist()) == (True, [0.0] * 3)


def test_second_derivatives():
    """X13, U38: nested transforms open their own crossing."""
    m = Node(w=plait.Param(jnp.float32(3)))
    inner = lambda m: plait.grad(lambda m: m.w.value**3)(m)["w"].value
    assert float(plait.grad(inner)(m)["w"].value) == 18.0
    assert float(plait.jit(plait.grad(inner))(m)["w"].value) == 18.0


def test_grad_is_a_decorator_and_keeps_the_name():
    """X13."""

    @plait.value_and_grad(argnums=1)
    def cube(m, x):
        """Doc."""
        return m.w.value * x**3

    value, grad = cube(Node(w=plait.Param(2.0)), 2.0)
    assert (float(value), float(grad), cube.__name__, cube.__doc__) == (16.0, 24.0, "cube", "Doc.")


def test_complex_and_integer_inputs_go_through():
    """X13: holomorphic and allow_int as in JAX."""
    z = jnp.complex64(1 + 2j)
    got = plait.grad(lambda m, z: m.w.value * z**2, argnums=1, holomorphic=True)(
        Node(w=plait.Param(jnp.complex64(1))), z
    )
    assert got == 2 * z
    grads = plait.grad(lambda m: m.w.value * 2.0, allow_int=True)(Node(w=plait.Param(1.0), n=plait.Param(jnp.int32(3))))
    assert (float(grads["w"].value), grads["n"].value.dtype) == (2.0, jax.dtypes.float0)


@st.composite
def plain_models(draw):
    """A small random module and the pure function of its arrays that does the same."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    keys = iter(jax.random.split(jax.random.key(draw(st.integers(0, 99))), 20))
    layers = [
        Node(w=plait.Param(jax.random.normal(next(keys), pair)), b=plait.Param(jax.random.normal(next(keys), pair[1:])))
        for pair in itertools.pairwise(sizes)
    ]
    tied = draw(st.booleans())
    model = Node(layers=layers, scale=layers[0].b if tied else plait.Param(jnp.float32(2.0)), seen=plait.BatchStat(0.0))
    return model, jax.random.normal(next(keys), (2, sizes[0])), tied


def run(model, x):
    model.seen.value = model.seen.value + x.sum()
    for layer in model.layers:
        x = jnp.tanh(x @ layer.w.value + layer.b.value[None])
    return (x**2).sum() * model.scale.value.sum()


def run_arrays(layers, scale, x):
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"][None])
    return (x**2).sum() * (layers[0]["b"] if scale is None else scale).sum()


@pytest.mark.slow
@given(plain_models())
def test_random_models_have_the_gradients_of_their_pure_functions(sample):
    """X13, X14, U19: with and without a tied variable."""
    model, x, tied = sample
    layers = [{"w": layer.w.value, "b": layer.b.value} for layer in model.layers]
    value, (by_model, by_x) = plait.value_and_grad(run, argnums=(0, 1))(model, x)
    scale = None if tied else model.scale.value
    expected, (by_layers, by_array) = jax.value_and_grad(run_arrays, argnums=(0, 2))(layers, scale, x)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(by_x, by_array, rtol=1e-5, atol=1e-6)
    for number, layer in enumerate(by_layers):
        for name, array in layer.items():
            np.testing.assert_allclose(by_model["layers"][number][name].value, array, rtol=1e-5, atol=1e-6)
    assert ("scale" in by_model) == (not tied)
    np.testing.assert_allclose(model.seen.value, x.sum(), rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("mode", [{}, *VALUES_ONLY], ids=str)
@pytest.mark.usefixtures("users_promotion")
def test_types_numbers_and_updates_are_those_of_the_reference(mode):
    """X13, section 10: the same program, run with both libraries."""
    nnx = pytest.importorskip("flax.nnx")

    def program(lib):
        class Model(lib.Module):
            def __init__(self):
                self.linear = lib.Linear(3, 2, rngs=lib.Rngs(0))
                self.norm = lib.BatchNorm(2, rngs=lib.Rngs(1))
                self.kind = "a"

        def f(model, x):
            return (model.norm(model.linear(x)) ** 3).sum()

        model = Model()
        modes = {"graph": True, "graph_updates": True, **mode}
        value, (by_model, by_x) = lib.value_and_grad(f, argnums=(0, 1), **modes)(model, jnp.arange(6.0).reshape(2, 3))
        kind = type(by_model).__name__
        leaves = {
            ".".join(map(str, path)): leaf[...]
            for path, leaf in lib.to_flat_state(by_model if kind == "State" else lib.state(by_model))
        }
        return kind, {**leaves, "value": value, "by x": by_x, "mean": model.norm.mean[...], "var": model.norm.var[...]}

    kind, ours = program(plait)
    expected_kind, theirs = program(nnx)
    assert (kind, sorted(ours)) == (expected_kind, sorted(theirs))
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=2e-3, atol=2e-3, err_msg=name)


class Noisy(plait.Module):
    """A layer, batch statistics and dropout."""

    def __init__(self):
        self.linear = plait.Linear(3, 2, rngs=plait.Rngs(0))
        self.norm = plait.BatchNorm(2, rngs=plait.Rngs(1))
        self.drop = plait.Dropout(0.5, rngs=plait.Rngs(dropout=2))

    def __call__(self, x):
        return self.drop(self.norm(self.linear(x)))


def squared(model, x):
    return (model(x) ** 2).sum()


def scanned(model, x):
    step = plait.scan(lambda m, x: (m, squared(m, x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
    return step(model, x[None])[1].sum()


def mapped(model, x):
    return plait.vmap(lambda x: plait.grad(lambda x: (x**2).sum())(x))(x).sum() + squared(model, x)


NESTED = {
    "plain": plait.grad(squared),
    "jit": plait.jit(plait.grad(squared)),
    "of jit": plait.grad(plait.jit(squared)),
    "of remat": plait.grad(plait.remat(squared)),
    "of scan": plait.grad(scanned),
    "of vmap of grad": plait.grad(mapped),
    "of value_and_grad": plait.grad(lambda m, x: plait.value_and_grad(squared, argnums=1)(m, x)[0]),
    "in scan": lambda m, x: jax.tree.map(
        lambda g: g[0],
        plait.scan(lambda m, x: (m, plait.grad(squared)(m, x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))(
            m, x[None]
        )[1],
    ),
    "in cond": lambda m, x: plait.cond(True, plait.grad(squared), lambda m, x: plait.grad(squared)(m, 2 * x), m, x),
}


@pytest.mark.parametrize("case", slow_but(["plain"], NESTED))
def test_statistics_and_streams_advance_once_wherever_the_gradient_is_taken(case):
    """U30, U38: one draw, one step of the running mean; the gradient of the mask that eager Python draws."""
    eager, model = Noisy(), Noisy()
    loss = squared(eager, X)
    graphdef, params, rest = plait.split(Noisy(), plait.Param, ...)
    expected = jax.grad(lambda p: squared(plait.merge(graphdef, p, rest), X))(params)
    grads = NESTED[case](model, X)
    assert np.isfinite(loss)
    assert int(model.drop.rngs.count.value) == int(eager.drop.rngs.count.value) == 1
    np.testing.assert_allclose(model.norm.mean.value, eager.norm.mean.value, rtol=1e-5, atol=1e-7)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), grads, expected)


def test_integers_are_told_by_path():
    """Section 9: and nothing is changed."""
    model = Node(w=plait.Param(jnp.ones(2)), inner=Node(index=plait.Param(jnp.arange(2))))
    with pytest.raises(TypeError, match=r"(?s)at +m\.inner\.index\n.*int32\[2\].*DiffState.*allow_int"):
        plait.grad(lambda m: m.w.sum())(model)
    floats = plait.All(plait.Param, lambda path, v: jnp.issubdtype(v.dtype, jnp.inexact))
    assert list(plait.grad(lambda m: m.w.sum(), argnums=plait.DiffState(0, floats))(model)) == ["w"]
    assert float(plait.grad(lambda m: m.w.sum(), allow_int=True)(model)["w"][0]) == 1.0


WRONG_POSITIONS = {
    "a module": lambda nnx: nnx.grad(abs, argnums=nnx.Dict(a=0)),
    "in a tuple": lambda nnx: nnx.grad(abs, argnums=(0, nnx.Dict(a=0))),
    "a variable": lambda nnx: nnx.value_and_grad(abs, argnums=nnx.Variable(0)),
    "of a rule": lambda nnx: nnx.custom_vjp(abs, nondiff_argnums=(nnx.Dict(a=0),)),
}


@pytest.mark.parametrize("wrap", WRONG_POSITIONS.values(), ids=WRONG_POSITIONS)
def test_argnums_that_fit_no_call_are_refused_when_the_function_is_wrapped(wrap):
    """X13."""
    with pytest.raises(ValueError, match=r"takes the positions of arguments\n +at +(nondiff_)?argnums"):
        wrap(plait)


@pytest.mark.oracle
@pytest.mark.parametrize("wrap", WRONG_POSITIONS.values(), ids=WRONG_POSITIONS)
def test_flax_refuses_the_same_argnums_when_it_wraps(wrap):
    """X13."""
    with pytest.raises(ValueError, match=r"not allowed|not supported"):
        wrap(pytest.importorskip("flax.nnx"))


EMPTY = {"a dict": {}, "a state": plait.State({}), "None": None}


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacrev", "jacfwd", "hessian"])
@pytest.mark.parametrize("kind", EMPTY)
def test_the_gradient_of_nothing_is_nothing(name, kind):
    """X12: as in JAX and Flax, for an argument without leaves, and for no argument."""
    x, nothing = jnp.float32(2), EMPTY[kind]
    found = getattr(plait, name)(lambda _, x: x * 1.0)(nothing, x)
    assert (found[1] if name == "value_and_grad" else found) == nothing
    found = getattr(plait, name)(lambda _, x: x * 1.0, argnums=())(nothing, x)
    assert (found[1] if name == "value_and_grad" else found) == ()


def test_other_derivatives_of_nothing():
    assert plait.hvp(lambda _: jnp.float32(1), ({},), {}) == {}
    model = plait.Dict(w=plait.Param(jnp.ones(2)))
    value, grads = plait.capture_gradients(lambda model, x: (model.w[...] * x).sum())(model, jnp.float32(2))
    assert (float(value), grads) == (4.0, plait.State({}))
