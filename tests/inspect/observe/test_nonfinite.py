"""NaN and infinities are found, named by module, and kept out of the model."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait as nnx
from plait.errors import NonFiniteError
from plait.inspect.observe.module_names import labelled, labels_of
from plait.inspect.observe.nonfinite import has_nan
from tests.sampling import slow_but

BAD = jnp.asarray([[1.0, 2.0, jnp.nan], [1.0, 2.0, 3.0]])


class Net(nnx.Module):
    def __init__(self):
        self.body = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(1)))

    def __call__(self, x):
        return self.body(x)


def forward(model, x):
    return model(x).sum()


WAYS = {
    "eager": forward,
    "jit": nnx.jit(forward),
    "grad": nnx.grad(forward),
    "jit of grad": nnx.jit(nnx.grad(forward)),
}


@pytest.mark.parametrize("way", slow_but(["jit", "jit of grad"], WAYS))
def test_the_module_that_makes_a_nan_is_named_and_nothing_is_written(way):
    model = Net()
    WAYS[way](model, jnp.ones((2, 3)))  # compiled before: the check does not hang on the first call
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))
    with (
        pytest.raises(NonFiniteError, match=r"(?s)a NaN appeared.*body\.layers\[0\] \(a Linear\), in __call__.*nan"),
        nnx.debug_nans(),
    ):
        WAYS[way](model, BAD)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(model)), before)
    assert nnx.find_nonfinite(model) == {}


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_running_statistics_that_hold_nan_are_named(way):
    model = Net()
    forward(model, BAD)  # without the check
    assert nnx.find_nonfinite(model) == {"body.layers[1].mean": 3, "body.layers[1].var": 3}
    assert nnx.find_nonfinite(model, nnx.Param) == {}
    model.eval()
    with (
        pytest.raises(NonFiniteError, match=r"(?s)body\.layers\[1\] \(a BatchNorm\).*body\.layers\[1\]\.mean, body"),
        nnx.debug_nans(),
    ):
        WAYS[way](model, jnp.ones((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("way", slow_but(["jit of grad"], WAYS))
@pytest.mark.parametrize("stacked", [False, True])
def test_parameters_that_hold_nan_are_named(way, stacked):
    """Where a gradient is taken, too: its function works on traced values, and those of the caller say it."""
    layers = [nnx.Linear(3, 3, rngs=nnx.Rngs(0)) for _ in range(2)]
    layers[1].kernel[...] = layers[1].kernel.at[0, 0].set(jnp.nan)
    model = Net()
    model.body = nnx.Stack(layers) if stacked else nnx.Sequential(*layers)
    path = r"body\[1\]\.kernel" if stacked else r"body\.layers\[1\]\.kernel"
    with pytest.raises(NonFiniteError, match=rf"do +initialize these again.* {path} of Net"), nnx.debug_nans():
        WAYS[way](model, jnp.ones((2, 3)))


def test_good_numbers_pass_and_the_setting_ends_with_the_block():
    model = Net()
    with nnx.debug_nans():
        expected = WAYS["jit"](model, jnp.ones((2, 3)))
        assert jax.config.jax_debug_nans
    assert not jax.config.jax_debug_nans
    assert np.isfinite(expected)
    assert np.isnan(WAYS["jit"](model, BAD))


def test_infinities_when_asked():
    def divide(x):
        return 1 / x

    with nnx.debug_nans():
        assert np.isinf(divide(jnp.zeros(())))
    with (
        pytest.raises(NonFiniteError, match=r"(?s)an infinity appeared.*outside of all methods.*div"),
        nnx.debug_nans(infs=True),
    ):
        divide(jnp.zeros(()))


def test_as_a_decorator_and_in_a_block_of_its_own_kind():
    checked = nnx.debug_nans()(lambda model, x: model(x))
    with pytest.raises(NonFiniteError, match="Linear"), nnx.debug_nans():
        checked(Net(), BAD)
    with pytest.raises(ZeroDivisionError), nnx.debug_nans():
        _ = 1 / 0


@pytest.mark.slow
def test_an_optimizer_step_is_not_taken(users_promotion):
    model = Net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: jnp.log(-(model(x).mean() ** 2)))(model))

    with pytest.raises(NonFiniteError), nnx.debug_nans():
        step(model, optimizer, jnp.ones((2, 3)))
    assert nnx.find_nonfinite([model, optimizer]) == {}
    assert optimizer.step.value == 0


@pytest.mark.slow
def test_layers_of_a_stack_count_apart():
    """Also of a stack in a stack. A key of a dict that looks like that of layers is none."""
    inner = lambda rngs: nnx.Stack(lambda rngs: nnx.Linear(2, 2, rngs=rngs), 3, rngs=rngs)
    model = nnx.Dict(b=nnx.Stack(inner, 2, rngs=nnx.Rngs(0)), d={"0:2": nnx.Param(jnp.array([1.0, 2.0, jnp.nan]))})
    model.b[1][2].kernel[...] = jnp.array([[jnp.nan, 0.0], [jnp.inf, 0.0]])
    model.b[0][0].bias[...] = jnp.array([jnp.inf, 0.0])
    assert nnx.find_nonfinite(model) == {"b[0][0].bias": 1, "b[1][2].kernel": 2, "d[0:2]": 1}


def test_what_holds_no_numbers_is_left_out():
    node = {"rngs": nnx.Rngs(0), "ids": nnx.Cache(jnp.arange(3)), "pair": nnx.Param({"a": jnp.inf, "b": jnp.nan})}
    assert nnx.find_nonfinite(node) == {"pair": 2}
    assert nnx.find_nonfinite(nnx.Param(jnp.nan)) == {"the root": 1}


BAD_ARRAY = jnp.asarray([jnp.nan, 1.0, -jnp.inf])


class WithArray(nnx.Module):
    def __init__(self):
        self.table, self.scale = BAD_ARRAY, nnx.Param(jnp.ones(2))


@pytest.mark.parametrize(("node", "expected"), [
    (WithArray(), {"table": 2}),
    ({"x": BAD_ARRAY, "y": [np.asarray(BAD_ARRAY), jnp.ones(2)]}, {"x": 2, "y[0]": 2}),
    (nnx.State({"a": {"b": BAD_ARRAY}}), {"a.b": 2}),
    (nnx.to_pure_dict(nnx.State({"a": {"b": nnx.Param(BAD_ARRAY)}})), {"a.b": 2}),
    (BAD_ARRAY, {"the root": 2}),
    (nnx.Dict(name=nnx.Variable("text"), number=nnx.Param(float("nan"))), {"number": 1}),
    (nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0))), {}),
])  # fmt: skip
def test_plain_arrays_are_looked_at_and_what_is_no_number_is_not(node, expected):
    """An empty answer means that all is well, so nothing with numbers is passed over."""
    assert nnx.find_nonfinite(node) == expected


class Bad(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return jnp.log(-jnp.abs(self.linear(x)) - 1)


class Deep(nnx.Module):
    """Only ``last[1].inner`` makes a NaN, inside of a transform."""

    def __init__(self, rngs, through):
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.last = [nnx.Dict(inner=nnx.Linear(3, 3, rngs=rngs)), nnx.Dict(inner=Bad(rngs))]
        self.through = through

    def __call__(self, x):
        x = self.first(x)
        for part in self.last:
            x = self.through(part, x)
        return x


def run_part(part, x):
    return part.inner(x)


INSIDE = {
    "remat": nnx.remat(run_part),
    "scan": lambda part, x: nnx.scan(
        lambda x, part: run_part(part, x), length=2, in_axes=(nnx.Carry, None), out_axes=nnx.Carry
    )(x, part),
    "while_loop": lambda part, x: nnx.while_loop(
        lambda v: v[0] < 2, lambda v: (v[0] + 1, v[1], run_part(v[1], v[2])), (0, part, x)
    )[2],
    "fori_loop": lambda part, x: nnx.fori_loop(0, 2, lambda i, v: (v[0], run_part(*v)), (part, x))[1],
    "cond": lambda part, x: nnx.cond(jnp.bool(True), run_part, lambda part, x: x, part, x),
    "switch": lambda part, x: nnx.switch(jnp.int32(1), [lambda part, x: x, run_part], part, x),
    "vmap": nnx.vmap(run_part, in_axes=(None, 0)),
    "remat of scan": nnx.remat(lambda part, x: INSIDE["scan"](part, x)),
}


AROUND = {
    "eager": lambda model, x: model(x),
    "gradient": lambda model, x: nnx.value_and_grad(lambda model, x: model(x).sum())(model, x),
    "jit": lambda model, x: nnx.jit(lambda model, x: model(x))(model, x),
    "jit of gradient": lambda model, x: nnx.jit(nnx.value_and_grad(lambda model, x: model(x).sum()))(model, x),
}


def is_quick(row):
    """The least around each, and the most around a loop and a branch."""
    return row[1] == "eager" or row in [("scan", "jit of gradient"), ("cond", "jit of gradient")]


@pytest.mark.sampled
@pytest.mark.parametrize(("inside", "around"), slow_but(is_quick, itertools.product(INSIDE, AROUND)))
def test_a_module_inside_of_a_transform_is_named(inside, around):
    """JAX knows of a loop or a branch only that a NaN came out; of several modules of one class, one is named."""
    if inside == "while_loop" and "gradient" in around:
        pytest.skip("JAX has no reverse derivative of while_loop")
    model = Deep(nnx.Rngs(0), INSIDE[inside])
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))
    with (
        pytest.raises(
            NonFiniteError, match=r"at +last\[1\]\.inner \(a Bad\), in __call__(, iteration 0 of \w+)*\n +found .*log"
        ),
        nnx.debug_nans(),
    ):
        AROUND[around](model, jnp.ones((2, 3)))
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(model)), before)


class Root(nnx.Module):
    """Its derivative at zero is infinite, times zero."""

    def __init__(self):
        self.scale = nnx.Param(jnp.zeros(()))

    def __call__(self, x):
        return jnp.sqrt(x * self.scale)


@pytest.mark.parametrize("inside", slow_but(["remat"], ["remat", "scan", "vmap"]))
@pytest.mark.parametrize("around", slow_but(["jit of gradient"], ["gradient", "jit of gradient"]))
def test_a_module_whose_derivative_makes_a_nan_is_named(inside, around):
    model = Deep(nnx.Rngs(0), INSIDE[inside])
    model.last[1].inner = Root()
    with pytest.raises(NonFiniteError, match=r"at +last\[1\]\.inner \(a Root\), in __call__, or its"), nnx.debug_nans():
        AROUND[around](model, jnp.ones((2, 3)))


class Log(nnx.Module):
    """Infinite where ``x`` is minus the scale, not a number below."""

    def __init__(self, scale):
        self.scale = nnx.Param(jnp.asarray(scale))

    def __call__(self, x):
        return jnp.log(jnp.abs(x) + self.scale)


class Layers(nnx.Module):
    """Equal layers, in a list or stacked."""

    def __init__(self, kind, scales, through):
        self.stacked = nnx.vmap(kind)(jnp.asarray(scales))
        self.blocks = [kind(scale) for scale in scales]
        self.through = through

    def __call__(self, x):
        for block in self.blocks:
            x = self.through(block, x)
        return x

    def scanned(self, x):
        step = nnx.scan(lambda x, block: self.through(block, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return step(x, self.stacked)


class Scaled(nnx.Module):
    """The derivative of its root is infinite where ``x`` is zero."""

    def __init__(self, scale):
        self.scale = nnx.Param(jnp.asarray(scale))

    def __call__(self, x):
        return jnp.sqrt(x) * self.scale + 1.0


THROUGH = {"a call": lambda block, x: block(x), "remat": nnx.remat(lambda block, x: block(x))}
DIFFERENTIATED = {"grad": nnx.value_and_grad, "jit": lambda f: nnx.jit(nnx.value_and_grad(f))}
LAYER_CASES = {
    # kind, scales, the layer that fails
    "value": (Log, [1.0, 2.0, -9.0, 1.0], 2),
    "derivative": (Scaled, [0.0, -1.0, 1.0, 1.0], 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYER_CASES)
@pytest.mark.parametrize("through", slow_but(["a call"], THROUGH))
@pytest.mark.parametrize("around", slow_but(["jit"], DIFFERENTIATED))
def test_of_equal_layers_the_one_that_makes_a_nan_is_named(around, through, case):
    """P10: by its index in a list, and by the iteration of a scan."""
    kind, scales, layer = LAYER_CASES[case]
    model, around = Layers(kind, scales, THROUGH[through]), DIFFERENTIATED[around]
    rest = rf"\(a {kind.__name__}\), in __call__" + ", or its derivative" * (case == "derivative")
    with pytest.raises(NonFiniteError) as error, nnx.debug_nans():
        around(lambda model, x: (0.0 * model(x)).sum())(model, jnp.ones(3))
    assert re.fullmatch(rf"blocks\[{layer}\] {rest}", error.value.parts["at"])
    with pytest.raises(NonFiniteError) as error, nnx.debug_nans():
        around(lambda model, x: (0.0 * model.scanned(x)).sum())(model, jnp.ones(3))
    assert re.fullmatch(rf"stacked {rest}, iteration {layer} of scan", error.value.parts["at"])


class Around(nnx.Module):
    def __init__(self, part):
        self.part = part

    def __call__(self, x):
        return self.part(x)


class Another(Around):
    pass


class Stacked(nnx.Module):
    def __init__(self, kind, scales, period, options):
        kinds = (Around, Another)[:period]
        blocks = [kinds[number % period](kind(scale)) for number, scale in enumerate(scales)]
        self.blocks = nnx.Stack(blocks, period=period, **options)

    def __call__(self, x, shared=None):
        return self.blocks(x)


class InAStack(Stacked):
    """Two stacks in a stack; the layer that fails is in the first."""

    def __init__(self, kind, scales, period, options):
        inner = [Stacked(kind, each, period, options) for each in (scales, [scale * 0 for scale in scales])]
        self.blocks = nnx.Stack(inner, **options)


RECOMPUTED = {
    "nothing": {},
    "blocks": {"remat": True},
    "by a policy": {"remat": jax.checkpoint_policies.dots_saveable, "unroll": 2},
}
TAKEN = {
    "value": lambda f: f,
    "gradient": nnx.value_and_grad,
    "jit of gradient": lambda f: nnx.jit(nnx.value_and_grad(f)),
}


ROWS = [
    (recomputed, taken, case, period)
    for recomputed, taken, case, period in itertools.product(RECOMPUTED, TAKEN, LAYER_CASES, (1, 2))
    if (taken, case) != ("value", "derivative") and (period == 2 or recomputed in ("nothing", "blocks"))
]


def all_at_once(row):
    return row[0] == "blocks" and row[1:] == ("jit of gradient", "derivative", 2)


@pytest.mark.slow
@pytest.mark.parametrize(("recomputed", "taken", "case", "period"), slow_but(all_at_once, ROWS))
def test_the_layer_of_a_stack_is_named(recomputed, taken, case, period):
    """ST15: by its own index, whatever is recomputed; the fifth layer is left over from the periods."""
    kind, scales, layer = LAYER_CASES[case]
    model = Stacked(kind, [*scales, 1.0], period, RECOMPUTED[recomputed])
    with pytest.raises(NonFiniteError) as error, nnx.debug_nans():
        TAKEN[taken](lambda model, x: (0.0 * model(x)).sum())(model, jnp.ones(3))
    rest = ", or its derivative" * (case == "derivative")
    assert error.value.parts["at"] == f"blocks[{layer}].part (a {kind.__name__}), in __call__{rest}"


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", RECOMPUTED)
def test_the_layer_of_a_stack_in_a_stack_is_named(recomputed):
    kind, scales, layer = LAYER_CASES["value"]
    options = RECOMPUTED[recomputed] if recomputed != "parts" else {"remat": {"**.part": True}}
    with pytest.raises(NonFiniteError) as error, nnx.debug_nans():
        nnx.value_and_grad(lambda model, x: (0.0 * model(x)).sum())(InAStack(kind, scales, 2, options), jnp.ones(3))
    assert error.value.parts["at"] == f"blocks[0].blocks[{layer}].part (a {kind.__name__}), in __call__"


def test_the_iteration_of_a_stack_is_given_outside_of_modules():
    model = nnx.Stack([Log(scale) for scale in (1.0, 2.0, 3.0)])

    def step(block, x, scale):
        return jnp.log(block(x) * scale), None

    def scanned(model, x):
        return model.scan(step, x, nnx.PerLayer([jnp.asarray(scale) for scale in (9.0, -1.0, 1.0)]))[0]

    with pytest.raises(NonFiniteError, match=r"at .*, iteration 1 of Stack\n"), nnx.debug_nans():
        nnx.jit(scanned)(model, jnp.ones(3))


def test_labels_are_those_of_the_calls_that_lead_to_an_error():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        labelled("outer", lambda: labelled("in [2], (a Log)", fail))
    assert labels_of(error.tb) == ["outer", "in [2], (a Log)"]
    assert labelled("alone", lambda: 3) == 3


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("row", [0, 7])
def test_a_nan_on_any_device_is_found_under_a_mesh(row, on_host):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with jax.set_mesh(mesh):
        model = {"sharded": nnx.Param(jax.device_put(jnp.ones((8, 2)), rows)), "number": nnx.Param(jnp.ones(2))}
        assert not has_nan(model, on_host=on_host)
        model["sharded"][...] = model["sharded"][...].at[row, 1].set(jnp.nan)
        assert has_nan(model, on_host=on_host)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32"])
def test_a_nan_is_found_in_any_kind_of_numbers(dtype, on_host):
    odd = jnp.array([1, jnp.nan if dtype != "int32" else 0], dtype)
    model = {"odd": nnx.Param(odd), "other": nnx.Variable(jnp.ones(2)), "host": nnx.Param(np.ones(2))}
    assert has_nan(model, on_host=on_host) == (dtype != "int32")
    assert not has_nan(model, nnx.BatchStat, on_host=on_host)
