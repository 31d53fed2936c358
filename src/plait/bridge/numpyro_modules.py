"""Models in NumPyro programs: their parameters are ``param`` sites, or drawn from a prior.

A NumPyro program declares inferred values as *sites*, and its handlers assign a value to each site. So a model is
split: its parameters are sites, and its other changing state (statistics) is one mutable site. Each run of the program
builds a new model from the values of the sites. Random streams are not carried between runs; in each run they get a key
from the handlers. (rules B37 to B39)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import jax

from ..core.functional.merge import merge
from ..core.functional.split import split
from ..core.objects.filters import to_predicate
from ..core.objects.module import Module
from ..core.objects.nodes import check_node
from ..core.objects.rngs import RngState, RngStream
from ..core.objects.state import State, from_flat_state, to_flat_state
from ..core.objects.variable_kinds import Param
from ..core.objects.visit import iter_graph_nodes
from ..errors import ArgumentError, ArgumentTypeError
from ..ground.dependencies import require
from ..ground.path_patterns import PathPattern
from ..ground.paths import Path, describe_path
from ..ground.words import describe_type
from ..states.pure_dicts import plain_value, to_pure_dict, with_value
from ..surgery.reseeding import reseed
from ..typing import FilterLiteral
from .variables.collections import MISSING, find_leaf


def numpyro_module(name: str, module: Module, *, wrt: FilterLiteral = Param) -> Any:
    """Declare a model in a NumPyro program, with parameters that are optimized like those of ``numpyro.param``.

    Args:
        name: the prefix of the sites: ``name$params`` for the parameters, ``name$state`` for other state that the model
            changes.
        module: the model, created outside of the program. It provides the initial values, and is not changed.
        wrt: the variables that are parameters. All others except random streams are state.

    Returns:
        The model with the values of its sites: a callable with the attributes and methods of ``module``. The values of
        its variables after a call are the state of the next run. Random streams are reseeded in each run, with a key
        from NumPyro.

    Raises:
        MissingDependencyError: NumPyro is not installed.
        GraphTypeError: ``module`` is not a module.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> net = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> def program(x, y=None):
        ...     line = plait.bridge.numpyro_module("line", net)
        ...     numpyro.sample("y", dist.Normal(line(x), 1.0).to_event(2), obs=y)
        >>> elbo, adam = numpyro.infer.Trace_ELBO(), numpyro.optim.Adam(0.1)
        >>> svi = numpyro.infer.SVI(program, lambda x, y=None: None, adam, elbo)
        >>> x = jnp.ones((4, 2))
        >>> trained = svi.run(jax.random.key(0), 200, x, 3 * x[:, :1], progress_bar=False)
        >>> plait.update(net, plait.bridge.numpyro_state("line", net, trained.params))
        >>> bool(jnp.allclose(net(x), 3.0, atol=0.1))
        True
    """
    return _declared(name, module, wrt, {})


def random_numpyro_module(name: str, module: Module, prior: Any, *, wrt: FilterLiteral = Param) -> Any:
    """Declare a model in a NumPyro program with parameters drawn from a prior: a Bayesian neural network.

    Args:
        name: the prefix of the sites. A parameter has the site ``name/path``, as in ``net/layers[0].kernel``.
        module: as in ``numpyro_module``; values of parameters with a prior are not used.
        prior: a distribution for all parameters, a function of the path (a string) and the shape that returns one, or a
            mapping. Its keys are filters, or path patterns such as ``"layers[*].kernel"``; the first match counts.
            Parameters without a match are optimized, as in ``numpyro_module``. A distribution is expanded to the shape
            of the parameter.
        wrt: which variables are parameters.

    Returns:
        Like ``numpyro_module``.

    Raises:
        MissingDependencyError: NumPyro is not installed.
        GraphTypeError: ``module`` is not a module.
        ArgumentError: a key of the mapping matches no parameter.
        ArgumentTypeError: a prior is not a distribution.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> net = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> def program(x):
        ...     line = plait.bridge.random_numpyro_module("line", net, {"bias": dist.Cauchy(), ...: dist.Normal()})
        ...     return line(x)
        >>> with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        ...     program(jnp.ones((4, 2))).shape
        (4, 1)
        >>> {site: type(found["fn"].base_dist.base_dist).__name__ for site, found in sites.items()}
        {'line/bias': 'Cauchy', 'line/kernel': 'Normal'}
    """
    dist = require("numpyro.distributions", extra="numpyro", purpose="to draw parameters from a prior")
    check_node(module, "random_numpyro_module")
    found = dict(to_flat_state(split(module, wrt, ...)[1]))
    priors = {path: _prior_of(dist, prior, path, leaf) for path, leaf in found.items()}
    unused = [] if not isinstance(prior, Mapping) else _unused(prior, found)
    if unused:
        raise ArgumentError(
            "a prior matches no parameter of the model",
            at=f"the key {unused[0]!r}",
            found=f"parameters at {', '.join(map(describe_path, found)) or '(none)'}",
            expected="filters and path patterns that match some of them",
            do="remove the key, or write it as a pattern: '**.kernel'",
        )
    return _declared(name, module, wrt, {path: each for path, each in priors.items() if each is not None})


def numpyro_state(name: str, module: Module, values: Mapping[str, Any]) -> State:
    """The values of a model's sites as a ``State`` of the model, for ``plait.update``.

    Args:
        name: the name that the model was declared with.
        module: the model.
        values: values by site, from ``SVI`` or ``MCMC.get_samples``; other sites are ignored. Samples keep their
            leading axis, for ``plait.vmap``.

    Raises:
        ArgumentError: no site belongs to the model.

    Example:
        >>> net = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> samples = {"line/kernel": jnp.ones((10, 2, 1)), "line/bias": jnp.zeros((10, 1)), "noise": jnp.ones(10)}
        >>> state = plait.bridge.numpyro_state("line", net, samples)
        >>> predict = lambda state, x: plait.merge(plait.graphdef(net), state)(x)
        >>> jax.vmap(predict, in_axes=(0, None))(state, jnp.ones((4, 2))).shape
        (10, 4, 1)
    """
    trees = [values.get(f"{name}$params", {}), values.get(f"{name}$state", {}).get("state", {})]
    flat = dict(to_flat_state(split(module)[1]))
    known = {f"{name}/{describe_path(path)}": path for path in flat}
    found: dict[Path, Any] = {known[site]: value for site, value in values.items() if site in known}
    for path in flat:
        for tree in trees:
            value = find_leaf(tree, path)
            if value is not MISSING:
                found[path] = value
    if not found:
        raise ArgumentError(
            "no sample site belongs to the model",
            found=f"the sites {', '.join(values) or '(none)'}",
            expected=f"{name}$params, {name}$state, or {name}/ with the path of a parameter",
            do="pass the name that the model was declared with",
        )
    return from_flat_state((path, with_value(flat[path], value)) for path, value in found.items())


def _declared(name: str, module: Module, wrt: FilterLiteral, priors: Mapping[Path, Any]) -> _Declared:
    numpyro = require("numpyro.primitives", extra="numpyro", purpose="to put a model into a NumPyro program")
    check_node(module, "numpyro_module")
    graphdef, params, streams, rest = split(module, wrt, RngState, ...)
    flat = dict(to_flat_state(params))
    values = {path: numpyro.sample(f"{name}/{describe_path(path)}", prior) for path, prior in priors.items()}
    trained = {path: leaf for path, leaf in flat.items() if path not in values}
    if trained:
        tree = numpyro.param(f"{name}$params", _nested(trained))
        values |= {path: find_leaf(tree, path) for path in trained}
    kept = dict(to_flat_state(rest))
    holder = numpyro.mutable(f"{name}$state", {"state": _nested(kept)}) if kept else {"state": {}}
    held = {path: find_leaf(holder["state"], path) for path in kept}
    leaves = [(path, with_value({**flat, **kept}[path], value)) for path, value in (values | held).items()]
    own = merge(graphdef, from_flat_state(leaves), streams)
    if len(streams):
        _begin_anew(own, numpyro.prng_key())

    def keep() -> None:
        if kept:
            now = dict(to_flat_state(split(own)[1]))
            holder["state"] = _nested({path: now[path] for path in kept})

    return _Declared(own, keep)


class _Declared:
    """A model whose changes are stored after each call, including calls of its methods and parts."""

    def __init__(self, module: Any, keep: Callable[[], None]) -> None:
        self._module, self._keep = module, keep

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._kept(self._module)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, Module):
            return _Declared(value, self._keep)
        return self._kept(value) if isinstance(value, MethodType) else value

    def __repr__(self) -> str:
        return repr(self._module)

    def _kept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                self._keep()

        return call


def _begin_anew(module: Any, key: Any) -> None:
    """Give the random streams keys derived from one key; without it they are unchanged."""
    tags = sorted({node.tag for _, node in iter_graph_nodes(module) if isinstance(node, RngStream)})
    if tags and key is not None:
        keys = {tag: jax.random.fold_in(key, number) for number, tag in enumerate(tags)}
        reseed(module, policy="match_shape", **keys)


def _prior_of(dist: Any, prior: Any, path: Path, leaf: Any) -> Any:
    """The distribution of one parameter, with its shape; ``None`` if a mapping has none."""
    shape = tuple(jax.numpy.shape(plain_value(leaf)))
    found: Any
    if isinstance(prior, Mapping):
        matching = (value for key, value in prior.items() if _predicate(key)(path, leaf))
        found = next(matching, None)
        if found is None:
            return None
    else:
        found = prior
        if callable(prior) and not isinstance(prior, dist.Distribution):
            found = prior(describe_path(path), shape)
    if not isinstance(found, dist.Distribution):
        raise ArgumentTypeError(
            "a prior is not a distribution",
            at=describe_path(path),
            found=describe_type(found),
            expected="a distribution of numpyro.distributions",
            do="prior=numpyro.distributions.Normal(0.0, 1.0)",
        )
    if found.shape() != shape:
        found = found.expand(shape[: len(shape) - len(found.event_shape)])
    return found.to_event(len(found.batch_shape))


def _unused(prior: Mapping[Any, Any], found: Mapping[Path, Any]) -> list[Any]:
    """The keys that match nothing, except ``...``, which is for all remaining parameters."""
    return [key for key in prior if key is not ... and not any(_predicate(key)(*item) for item in found.items())]


def _predicate(key: Any) -> Callable[[Path, Any], bool]:
    return PathPattern(key) if isinstance(key, str) else to_predicate(key)


def _nested(leaves: Mapping[Path, Any]) -> Any:
    """Values by path as nested dictionaries, the form of NumPyro's sites."""
    return to_pure_dict(from_flat_state(leaves.items()))
