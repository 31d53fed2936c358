"""Random streams: named sources of keys whose state is part of the model.

A stream holds a key and a counter; each draw is ``fold_in(key, counter)`` and advances the counter, in and out of
``jit`` alike. (rules R1 to R5, R9)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import trace_state
from ..errors import ArgumentError, StreamAttributeError, StreamKeyError
from ..typing import FilterLiteral
from .filters import to_predicate
from .module import Pytree
from .trace_guard import raise_foreign_trace
from .variables import Variable


class RngState(Variable[Any]):
    """Random state; ``tag`` metadata is the name of the stream."""


class RngKey(RngState):
    """The key of a stream."""


class RngCount(RngState):
    """The counter of a stream."""


# Samplers of jax.random whose first argument is a key (rule R4).
SAMPLERS = [
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
]
INITIALIZERS = [
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
]


class _Samplers(Pytree):
    """The samplers and initializers of JAX, with the key drawn from the stream."""

    def _draw(self) -> jax.Array:
        raise NotImplementedError


def _sampler(name: str) -> Callable[..., Any]:
    function = getattr(jax.random, name)

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self._draw(), *args, **kwargs)

    sample.__name__ = name
    sample.__doc__ = f"``jax.random.{name}`` with the key drawn from this stream."
    return sample


def _initializer(name: str) -> Callable[..., Any]:
    factory = getattr(jax.nn.initializers, name)

    def initializer(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        function = factory(*args, **kwargs)
        return lambda *args, **kwargs: function(self._draw(), *args, **kwargs)

    initializer.__name__ = name
    initializer.__doc__ = f"``jax.nn.initializers.{name}``; the result is called without a key: ``(shape, dtype)``."
    return initializer


for _name in SAMPLERS:
    if hasattr(jax.random, _name):
        setattr(_Samplers, _name, _sampler(_name))
for _name in INITIALIZERS:
    setattr(_Samplers, _name, _initializer(_name))


def as_key(source: Any) -> jax.Array:
    """A typed key from an integer seed, a raw uint32 key, a typed key, or a stream.

    Raises:
        ArgumentError: names the value.
    """
    if isinstance(source, RngStream):
        return source.key.get_value()
    if isinstance(source, Variable):
        source = source.get_value()
    if isinstance(source, int) and not isinstance(source, bool):
        return jax.random.key(source)
    if isinstance(source, (jax.Array, np.ndarray, np.integer)):
        if jnp.issubdtype(source.dtype, jax.dtypes.prng_key):
            return cast(jax.Array, source)
        if source.dtype == jnp.uint32 and source.shape[-1:] == (2,):
            return jax.random.wrap_key_data(jnp.asarray(source))
        if jnp.issubdtype(source.dtype, jnp.integer) and source.shape == ():
            return jax.random.key(source)
    raise ArgumentError(
        "this value cannot seed a random stream",
        found=f"{source!r:.80} of type {type(source).__name__}",
        expected="an integer seed, a key of jax.random.key, a raw uint32 key, or an RngStream",
        do="for example plait.Rngs(0) or plait.Rngs(params=0, dropout=1)",
    )


class RngStream(_Samplers):
    """One stream of random keys.

    Args:
        key: integer seed, typed key, or raw uint32 key; any shape of keys.
        tag: the name of the stream.

    Variables:
        key: ``RngKey``. count: ``RngCount``, uint32 of the key's shape; both with ``tag`` as metadata.

    Example:
        >>> stream = plait.RngStream(0, tag="dropout")
        >>> first, second = stream(), stream()
        >>> bool((first == second).all()), int(stream.count[...])
        (False, 2)
    """

    def __init__(self, key: Any, *, tag: str) -> None:
        key = as_key(key)
        self.tag = tag
        self.key = RngKey(key, tag=tag)
        self.count = RngCount(jnp.zeros(key.shape, jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """The next key: ``fold_in(key, count)``, and the counter advances."""
        count = self.count._cell
        if count.trace is not trace_state.value:
            raise_foreign_trace(count.trace, self.count, f"draw from the stream {self.tag!r}, which changes its")
        value = self.count.get_value()
        key = jax.random.fold_in(self.key.get_value(), value)
        self.count.set_value(value + jnp.uint32(1))
        return key

    def _draw(self) -> jax.Array:
        return self()

    @property
    def last(self) -> jax.Array:
        """The key of the latest draw."""
        return jax.random.fold_in(self.key.get_value(), self.count.get_value() - jnp.uint32(1))

    def fork(self, *, split: int | tuple[int, ...] | None = None) -> RngStream:
        """A new independent stream, seeded by one draw of this one."""
        key = self()
        return type(self)(key if split is None else jax.random.split(key, split), tag=self.tag)

    def split(self, splits: int | tuple[int, ...]) -> RngStream:
        """A new stream that holds a split of one draw of this one."""
        return type(self)(jax.random.split(self(), splits), tag=self.tag)

    def broadcast(self, shape: int | tuple[int, ...]) -> RngStream:
        """A new stream that holds one draw of this one, repeated."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return type(self)(jnp.broadcast_to(self(), shape), tag=self.tag)


class Rngs(_Samplers):
    """Named random streams; a name that is missing falls back to ``default``.

    Args:
        default: seed, key or stream of the default stream, or a mapping of streams.
        **streams: seeds, keys or streams by name.

    Example:
        >>> rngs = plait.Rngs(0, dropout=1)
        >>> rngs.params().shape, rngs.dropout().shape, list(rngs)
        ((), (), ['default', 'dropout'])
    """

    def __init__(self, default: Any = None, /, **streams: Any) -> None:
        if isinstance(default, Rngs):
            default = dict(default.items())
        if isinstance(default, Mapping):
            streams = {**default, **streams}
        elif default is not None:
            streams = {"default": default, **streams}
        for name, source in streams.items():
            setattr(self, name, RngStream(as_key(source), tag=name))

    def __getattr__(self, name: str) -> RngStream:
        if name.startswith("_"):
            raise AttributeError(name)
        default = self.__dict__.get("default")
        if default is None:
            raise StreamAttributeError(
                f"there is no random stream {name!r}, and no default one",
                found=f"the streams {sorted(self.__dict__)}",
                expected=f"a stream {name!r} or 'default'",
                do=f"make it: plait.Rngs({name}=0), or plait.Rngs(0) for a default stream",
            )
        return default

    def __getitem__(self, name: str) -> RngStream:
        try:
            return getattr(self, name)
        except StreamAttributeError as error:
            raise StreamKeyError(error.message, **error.parts) from None

    def __call__(self) -> jax.Array:
        """The next key of the default stream."""
        return self["default"]()

    def _draw(self) -> jax.Array:
        return self()

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def items(self) -> Any:
        """The streams that exist, with their names."""
        return self.__dict__.items()

    def fork(self, *, split: Any = None) -> Rngs:
        """New independent streams, each seeded by one draw of its own."""
        if split is not None:
            return self.split(split)
        return _with_streams({name: stream.fork() for name, stream in self.items()})

    def split(self, splits: int | tuple[int, ...] | Mapping[FilterLiteral, Any]) -> Rngs:
        """New streams that hold splits of one draw each.

        Args:
            splits: a number or shape for all streams, or a mapping from filters to numbers; streams that no filter
                matches, or whose number is ``None``, are kept.
        """
        return self._rewritten(splits, RngStream.split)

    def broadcast(self, shape: int | tuple[int, ...] | Mapping[FilterLiteral, Any]) -> Rngs:
        """New streams that hold one draw each, repeated."""
        return self._rewritten(shape, RngStream.broadcast)

    def _rewritten(self, rules: Any, rewrite: Callable[[RngStream, Any], RngStream]) -> Rngs:
        mapping = rules if isinstance(rules, Mapping) else {...: rules}
        predicates = [(to_predicate(filter), size) for filter, size in mapping.items()]
        streams = {}
        for name, stream in self.items():
            size = next((size for predicate, size in predicates if predicate((name,), stream)), None)
            streams[name] = stream if size is None else rewrite(stream, size)
        return _with_streams(streams)


def _with_streams(streams: Mapping[str, RngStream]) -> Rngs:
    rngs = Rngs()
    for name, stream in streams.items():
        setattr(rngs, name, stream)
    return rngs
