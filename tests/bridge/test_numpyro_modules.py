"""Models in NumPyro programs: the numbers of programs that declare each parameter by hand. (rules B37 to B39)"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError, ArgumentTypeError, GraphTypeError, MissingDependencyError
from tests.sampling import slow_but

numpyro = pytest.importorskip("numpyro")
dist = pytest.importorskip("numpyro.distributions")
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide  # noqa: E402

X = jax.random.normal(jax.random.key(0), (12, 2))
Y = X[:, :1] * 2 - 1


class Net(plait.Module):
    """Layers in a list, statistics, a counter, a random stream, and a method beside the call."""

    def __init__(self, rngs):
        self.layers = [plait.Linear(2, 4, rngs=rngs), plait.Linear(4, 1, rngs=rngs)]
        self.norm = plait.BatchNorm(4, rngs=rngs)
        self.drop = plait.Dropout(0.2, rngs=rngs)
        self.calls = plait.Variable(jnp.int32(0))

    def encode(self, x):
        self.calls[...] += 1
        return plait.tanh(self.norm(self.layers[0](x)))

    def __call__(self, x):
        return self.layers[1](self.drop(self.encode(x)))


@pytest.fixture(autouse=True)
def _promotion_as_numpyro_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def no_guide(x, y=None):
    """Nothing is drawn, so there is nothing to guide."""


def fitted(program, steps, **options):
    svi = SVI(program, no_guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    return svi.run(jax.random.key(1), steps, X, Y, progress_bar=False, **options)


def program_of(net, call=lambda net, x: net(x)):
    def program(x, y=None):
        found = call(bridge.numpyro_module("net", net), x)
        numpyro.sample("y", dist.Normal(found, 0.5).to_event(2), obs=y)

    return program


def sites_of(program, *args):
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        program(*args)
    return sites


def test_svi_trains_what_a_program_trains_that_declares_each_parameter():
    """B37."""
    line = plait.Linear(2, 1, rngs=plait.Rngs(0))

    def by_hand(x, y=None):
        kernel, bias = numpyro.param("kernel", line.kernel[...]), numpyro.param("bias", line.bias[...])
        numpyro.sample("y", dist.Normal(x @ kernel + bias, 0.5).to_event(2), obs=y)

    expected, found = fitted(by_hand, 20), fitted(program_of(line), 20)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.params["net$params"]["kernel"], expected.params["kernel"], rtol=1e-5)


@pytest.mark.slow
def test_the_model_itself_is_not_changed_until_it_is_updated():
    """B37, B39: parameters and state of SVI are a state of the model."""
    net = Net(plait.Rngs(0))
    before = jax.tree.leaves(plait.state(net, plait.Not(plait.RngState)))
    result = fitted(program_of(net), 3)
    after = jax.tree.leaves(plait.state(net, plait.Not(plait.RngState)))
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    state = bridge.numpyro_state("net", net, {**result.params, **result.state.mutable_state})
    assert all(type(leaf) is not plait.RngKey for _, leaf in plait.to_flat_state(state))
    plait.update(net, state)
    assert int(net.calls[...]) == 4  # numpyro runs a program once before the first step
    np.testing.assert_array_equal(net.layers[1].kernel[...], result.params["net$params"]["layers"][1]["kernel"])
    assert not (net.norm.mean[...] == 0).any()


CALLS = {
    "the model": lambda net, x: net(x),
    "a method": lambda net, x: net.layers[1](net.encode(x)),
    "a part": lambda net, x: net.norm(net.layers[0](x)),
}


@pytest.mark.parametrize("call", slow_but(["the model"], CALLS))
def test_what_a_call_changes_is_the_state_of_the_next_run(call):
    """B37: whichever way the model is called."""
    result = fitted(program_of(Net(plait.Rngs(0)), CALLS[call]), 3)
    state = result.state.mutable_state["net$state"]["state"]
    assert not (state["norm"]["mean"] == 0).any()
    assert int(state["calls"]) == (0 if call == "a part" else 4)


def test_a_failing_call_keeps_nothing_odd_and_raises():
    net = Net(plait.Rngs(0))
    with pytest.raises(plait.errors.ShapeError):
        sites_of(program_of(net), jnp.ones((2, 3)))


def test_random_streams_get_a_key_of_numpyro_in_each_run():
    """B37."""
    drop = plait.Dropout(0.5, rngs=plait.Rngs(0))

    def masks(seed):
        with numpyro.handlers.seed(rng_seed=seed):
            net = bridge.numpyro_module("drop", drop)
            return np.asarray(net(jnp.ones(64))), np.asarray(net(jnp.ones(64)))

    (first, second), (again, _), (other, _) = masks(0), masks(0), masks(1)
    assert (first == again).all()
    assert not (first == second).all()
    assert not (first == other).all()
    assert int(drop.rngs.count[...]) == 0


def test_only_what_is_asked_for_is_trained():
    """B37: ``wrt``."""
    net = Net(plait.Rngs(0))

    def program(x, y=None):
        found = bridge.numpyro_module("net", net, wrt=plait.PathContains("norm"))(x)
        numpyro.sample("y", dist.Normal(found, 0.5).to_event(2), obs=y)

    sites = sites_of(program, X)
    assert set(sites["net$params"]["value"]) == {"norm"}
    assert set(sites["net$state"]["value"]["state"]) == {"calls", "layers"}


def test_a_model_without_state_has_no_site_for_it():
    assert set(sites_of(program_of(plait.Linear(2, 1, rngs=plait.Rngs(0))), X)) == {"net$params", "y"}


# Priors ---------------------------------------------------------------------------------------------------------------


def random_program(net, prior):
    def program(x, y=None):
        found = bridge.random_numpyro_module("net", net, prior)(x)
        numpyro.sample("y", dist.Normal(found, 0.5).to_event(2), obs=y)

    return program


PRIORS = {
    "one": (dist.Normal(0, 2), "Normal", "Normal"),
    "by name": ({"bias": dist.Cauchy(), "kernel": dist.Normal(0, 2)}, "Cauchy", "Normal"),
    "by pattern": ({"b*": dist.Cauchy(), "**": dist.Normal(0, 2)}, "Cauchy", "Normal"),
    "by filter": ({plait.PathContains("bias"): dist.Cauchy(), ...: dist.Normal(0, 2)}, "Cauchy", "Normal"),
    "of a shape": ({"bias": dist.Cauchy(jnp.zeros(1)), ...: dist.Normal(jnp.zeros(1), 2)}, "Cauchy", "Normal"),
    "an event": ({"bias": dist.Cauchy(jnp.zeros(1)).to_event(1), ...: dist.Normal(0, 2)}, "Cauchy", "Normal"),
    "a function": (lambda name, shape: dist.Cauchy() if shape == (1,) else dist.Normal(0, 2), "Cauchy", "Normal"),
}


@pytest.mark.parametrize("name", PRIORS)
def test_each_parameter_has_the_prior_that_it_was_given(name):
    """B38: a site of the parameter's shape, and its probability."""
    prior, bias, kernel = PRIORS[name]
    sites = sites_of(random_program(plait.Linear(2, 1, rngs=plait.Rngs(0)), prior), X)
    assert [sites[f"net/{part}"]["value"].shape for part in ("bias", "kernel")] == [(1,), (2, 1)]
    for part, expected in (("bias", bias), ("kernel", kernel)):
        value, found = sites[f"net/{part}"]["value"], sites[f"net/{part}"]["fn"]
        one = {"Normal": dist.Normal(0, 2), "Cauchy": dist.Cauchy()}[expected]
        np.testing.assert_allclose(found.log_prob(value), one.log_prob(value).sum(), rtol=1e-5)


@pytest.mark.slow
def test_nuts_draws_what_it_draws_for_a_program_that_samples_by_hand():
    """B38."""
    line = plait.Linear(2, 1, rngs=plait.Rngs(0))

    def by_hand(x, y=None):
        bias = numpyro.sample("net/bias", dist.Normal().expand((1,)).to_event(1))
        kernel = numpyro.sample("net/kernel", dist.Normal().expand((2, 1)).to_event(2))
        numpyro.sample("y", dist.Normal(x @ kernel + bias, 0.5).to_event(2), obs=y)

    found = []
    for program in (random_program(line, dist.Normal()), by_hand):
        mcmc = MCMC(NUTS(program), num_warmup=10, num_samples=10, progress_bar=False)
        mcmc.run(jax.random.key(2), X, Y)
        found.append(mcmc.get_samples())
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4), *found)
    samples = found[0]
    state = bridge.numpyro_state("net", line, samples)
    graphdef = plait.graphdef(line)
    means = jax.vmap(lambda state: plait.merge(graphdef, state)(X))(state)
    expected = X @ samples["net/kernel"] + samples["net/bias"][:, None]
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-5)
    drawn = Predictive(random_program(line, dist.Normal()), samples)(jax.random.key(3), X)["y"]
    assert (drawn.shape, bool(jnp.abs(drawn - means).mean() < 1)) == ((10, 12, 1), True)


@pytest.mark.slow
def test_what_has_no_prior_is_trained_beside_what_has_one():
    """B38: a Bayesian last layer, by SVI with a guide; statistics are kept as before."""
    net = Net(plait.Rngs(0))
    program = random_program(net, {"layers[1].*": dist.Normal()})
    guide = autoguide.AutoNormal(program)
    svi = SVI(program, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    result = svi.run(jax.random.key(1), 3, X, Y, progress_bar=False)
    assert set(result.params["net$params"]["layers"]) == {0}
    assert {name for name in result.params if name.startswith("net/")} == {
        f"net/layers[1].{part}_auto_{kind}" for part in ("kernel", "bias") for kind in ("loc", "scale")
    }
    assert int(result.state.mutable_state["net$state"]["state"]["calls"]) > 3


WRONG = {
    "no module": (
        lambda net: bridge.numpyro_module("net", 3),
        GraphTypeError,
        r"(?s)^numpyro_module takes.*of type int",
    ),
    "no module to draw": (
        lambda net: bridge.random_numpyro_module("net", 3, dist.Normal()),
        GraphTypeError,
        r"(?s)^random_numpyro_module takes.*of type int",
    ),
    "a prior for nothing": (
        lambda net: bridge.random_numpyro_module("net", net, {"kernels": dist.Normal()}),
        ArgumentError,
        r"at +the key 'kernels'\n +found +parameters at bias, kernel",
    ),
    "no distribution": (
        lambda net: bridge.random_numpyro_module("net", net, {"kernel": 1.0}),
        ArgumentTypeError,
        r"at +kernel\n +found +a float",
    ),
    "no sites": (
        lambda net: bridge.numpyro_state("net", net, {"other/kernel": 1}),
        ArgumentError,
        "found +the sites other/kernel",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_say_what_was_found(name):
    call, error, match = WRONG[name]
    with numpyro.handlers.seed(rng_seed=0), pytest.raises(error, match=match):
        call(plait.Linear(2, 1, rngs=plait.Rngs(0)))


@pytest.mark.parametrize(
    ("declare", "missing"),
    [
        (lambda net: bridge.numpyro_module("net", net), "numpyro.primitives"),
        (lambda net: bridge.random_numpyro_module("net", net, dist.Normal()), "numpyro.distributions"),
    ],
    ids=["numpyro_module", "random_numpyro_module"],
)
def test_without_numpyro_the_extra_is_named(declare, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=r"(?s)numpyro is needed to .*do +pip install 'plait\[numpyro\]'"):
        declare(plait.Linear(2, 1, rngs=plait.Rngs(0)))


@pytest.mark.oracle
def test_flax_and_its_own_function_give_the_same_losses():
    """The same model in Flax, in a NumPyro program for Flax."""
    nnx = pytest.importorskip("flax.nnx")
    contrib = pytest.importorskip("numpyro.contrib.module")

    def program(x, y=None):
        found = contrib.nnx_module("net", nnx.Linear(2, 1, rngs=nnx.Rngs(0)))(x)
        numpyro.sample("y", dist.Normal(found, 0.5).to_event(2), obs=y)

    ours = fitted(program_of(plait.Linear(2, 1, rngs=plait.Rngs(0))), 5)
    np.testing.assert_allclose(ours.losses, fitted(program, 5).losses, rtol=1e-6)
