"""Random streams: named sources of keys whose state is part of the model.

A stream has a key and a counter. Each draw returns ``fold_in(key, counter)`` and advances the counter, inside and
outside of ``jit``.
"""

# Rules R1 to R5, R9.

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, StreamAttributeError, StreamError, StreamKeyError
from ..typing import FilterLiteral, Value
from ..util.jax_versions import Tracer, top_level_trace, trace_state
from ..util.notices import deprecated
from ..util.paths import Path, describe_path, layers_of
from .nodes.pytree import Pytree
from .traces.guard import check_trace, known_path
from .variables.filters import to_predicate
from .variables.operators import usable
from .variables.variables import Variable


class RngState(Variable[Value]):
    """Random state; ``tag`` metadata is the name of the stream."""


class RngKey(RngState):
    """The key of a stream."""


class RngCount(RngState):
    """The counter of a stream."""


def _functions_of(module: ModuleType) -> dict[str, FunctionType]:
    return {name: f for name, f in sorted(vars(module).items()) if isinstance(f, FunctionType) and name[0] != "_"}


# Names that streams define as methods, and initializers that draw nothing.
_OTHERS = {"clone", "fold_in", "split", "constant", "ones", "zeros"}
# The samplers of jax.random, whose first argument is a key, and the families of initializers (rule R4).
SAMPLERS = [
    name
    for name, function in _functions_of(jax.random).items()
    if name not in _OTHERS and next(iter(inspect.signature(function).parameters), None) == "key"
]
INITIALIZERS = [name for name in _functions_of(jax.nn.initializers) if name not in _OTHERS and name not in SAMPLERS]


class _Samplers(Pytree):
    """JAX's samplers and initializers, with the key drawn from the stream."""

    if TYPE_CHECKING:  # otherwise those that this version of JAX has, see below

        def normal(self, *args: Any, **kwargs: Any) -> jax.Array: ...

        def lecun_normal(self, *args: Any, **kwargs: Any) -> Callable[..., jax.Array]: ...

        ball = bernoulli = beta = binomial = bits = categorical = cauchy = chisquare = choice = dirichlet = normal
        double_sided_maxwell = exponential = f = gamma = generalized_normal = geometric = gumbel = laplace = normal
        loggamma = logistic = lognormal = maxwell = multinomial = multivariate_normal = orthogonal = pareto = normal
        permutation = poisson = rademacher = randint = rayleigh = t = triangular = truncated_normal = uniform = normal
        wald = weibull_min = normal
        delta_orthogonal = glorot_normal = glorot_uniform = he_normal = he_uniform = kaiming_normal = lecun_normal
        kaiming_uniform = lecun_uniform = variance_scaling = xavier_normal = xavier_uniform = lecun_normal


def _sampler(name: str) -> Callable[..., Value]:
    function = getattr(jax.random, name)

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self(), *args, **kwargs)

    sample.__name__ = name
    sample.__doc__ = f"``jax.random.{name}`` with the key drawn from this stream."
    return sample


def _initializer(name: str) -> Callable[..., Value]:
    factory = getattr(jax.nn.initializers, name)

    def initializer(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Value]:
        function = factory(*args, **kwargs)
        return lambda *args, **kwargs: function(self(), *args, **kwargs)

    initializer.__name__ = name
    initializer.__doc__ = f"``jax.nn.initializers.{name}``; the result is called without a key: ``(shape, dtype)``."
    return initializer


for _names, _method in ((SAMPLERS, _sampler), (INITIALIZERS, _initializer)):
    for _name in _names:
        setattr(_Samplers, _name, _method(_name))


def as_key(source: Any) -> jax.Array:
    """A typed key from an integer seed, a raw uint32 key of JAX's default implementation, a typed key, or a stream.

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
        if source.dtype == jnp.uint32 and source.ndim:
            with contextlib.suppress(TypeError):  # not as many numbers as a key of JAX's default implementation has
                return jax.random.wrap_key_data(jnp.asarray(source))
        if jnp.issubdtype(source.dtype, jnp.integer) and source.shape == ():
            return jax.random.key(source)
    raise ArgumentError(
        "Invalid rng value: it cannot seed a random stream",
        found=f"{source!r:.80} of type {type(source).__name__}",
        expected="an integer seed, a key of jax.random.key, a raw uint32 key of jax_default_prng_impl, or an RngStream",
        do="write, for example, plait.Rngs(0) or plait.Rngs(params=0, dropout=1)",
    )


def key_shape(k: Any) -> tuple[int, ...]:
    """The shape of keys, from a number or a shape.

    Raises:
        ArgumentTypeError: it is neither.
        ArgumentError: it has a negative length.
    """
    try:
        shape = tuple(map(operator.index, k if isinstance(k, Sequence) and not isinstance(k, str) else (k,)))
    except TypeError:
        raise ArgumentTypeError(
            "this is not a valid shape for random keys",
            found=f"{k!r:.80} of type {type(k).__name__}",
            expected="an integer or a tuple of integers",
            do="pass, for example, 4 or (2, 4)",
        ) from None
    if any(length < 0 for length in shape):
        raise ArgumentError(
            "random keys cannot have a negative length",
            found=f"{k!r:.80}",
            expected="lengths that are 0 or greater",
            do="pass, for example, 4 or (2, 4)",
        )
    return shape


def raise_many_keys(stream: RngStream, at: str | None = None, layers: tuple[int, ...] = ()) -> NoReturn:
    """Raise for a draw from a stream with an array of keys."""
    raise StreamError(
        f"the stream {stream.tag!r} has an array of keys, but a draw needs a single key",
        at=at or known_path(stream),
        found=f"keys of shape {stream.key.shape}",
        expected=f"a single key{' for each layer' if layers else ''}, of shape {layers}",
        do="draw in a function that is mapped over the keys, or first restore the stream: plait.restore_rngs(backups)",
    )


def drawn_keys(stream: RngStream, rewrite: Callable[[jax.Array], jax.Array], path: Path) -> jax.Array:
    """One draw of a stream, changed; of each layer's stream in a stack, with the axes of layers last."""
    key, count = stream.key.get_value(), stream.count.get_value()
    layers = tuple([len(part) for part in map(layers_of, path) if part is not None])
    if key.shape != layers:
        raise_many_keys(stream, describe_path(path), layers)
    if not layers:
        return rewrite(jax.random.fold_in(key, count))
    own = [rewrite(jax.random.fold_in(*each)) for each in zip(key.ravel(), count.ravel(), strict=True)]
    return jnp.stack(own, -1).reshape(*own[0].shape, *layers)


@functools.partial(jax.jit, inline=True)  # one dispatch instead of three; inlined under a trace
def _draw(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A key, and the next count."""
    return jax.random.fold_in(key, count), count + jnp.uint32(1)


@functools.partial(jax.jit, inline=True)
def _next(count: jax.Array) -> jax.Array:
    return count + jnp.uint32(1)


@jax.jit
def _draw_ahead(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A key, and the next two counts."""
    key, following = _draw(key, count)
    return key, following, _next(following)


@jax.jit
def _next_ahead(count: jax.Array) -> tuple[jax.Array, jax.Array]:
    following = _next(count)
    return following, _next(following)


class _Ahead(threading.local):
    """A count of this thread and the one after it, which is computed already.

    Building a layer is mostly dispatches: the values, and a step of the counter for each, also where nothing is drawn,
    such as for a bias of zeros. A dispatch that computes two counts takes no longer, and saves the next one.
    """

    def __init__(self) -> None:
        self.known: tuple[Any, Any] = (None, None)

    def draw(self, key: jax.Array, count: Value) -> tuple[jax.Array, Value]:
        """A key, and the next count."""
        key, following, beyond = _draw_ahead(key, count)
        self.known = (following, beyond)
        return key, following

    def after(self, count: Value) -> Value:
        """The next count."""
        known, following = self.known
        if known is not count or following.is_deleted():
            following, beyond = _next_ahead(count)
            self.known = (following, beyond)
        return following


_ahead = _Ahead()
_fold_in = jax.jit(jax.random.fold_in, inline=True)


def _is_concrete(count: Value) -> bool:
    """Whether a count is a NumPy number: it stays concrete during tracing, so that a stack can count the draws of a
    block."""
    return isinstance(count, (np.ndarray, np.generic))


def _no_draws(shape: tuple[int, ...]) -> Any:
    """The count of a new stream. Where JAX would trace it, that of a single key is a NumPy number: adding is cheap."""
    count = jnp.zeros(shape, jnp.uint32)
    return np.zeros((), np.uint32) if not shape and isinstance(count, Tracer) else count


def _is_traced() -> bool:
    return trace_state.value is not top_level_trace


def _after(count: Value) -> Value:
    if _is_concrete(count):
        return count + np.uint32(1)
    return _next(count) if _is_traced() else _ahead.after(count)


class RngStream(_Samplers):
    """One stream of random keys.

    Args:
        key: integer seed, typed key, or raw uint32 key of JAX's default implementation; any shape of keys.
        tag: the name of the stream.

    Variables:
        key: ``RngKey``. count: ``RngCount``, uint32 of the key's shape; both with ``tag`` as metadata.

    Raises:
        ArgumentError: the key is none of these.

    Example:
        >>> stream = plait.RngStream(0, tag="dropout")
        >>> first, second = stream(), stream()
        >>> bool((first == second).all()), int(stream.count[...])
        (False, 2)
    """

    def __init__(self, key: Value, *, tag: str) -> None:
        key = as_key(key)
        self.tag = tag
        self.key = RngKey(key, tag=tag)
        self.count = RngCount(_no_draws(key.shape), tag=tag)

    def __call__(self) -> jax.Array:
        """The next key: ``fold_in(key, count)``, and the counter advances.

        Raises:
            StreamError: the stream has an array of keys.
            TraceContextError: the stream belongs to another trace.
        """
        key, value = self._current()
        if _is_concrete(value):
            self.count.set_value(_after(value))
            return _fold_in(key, value)
        key, value = _draw(key, value) if _is_traced() else _ahead.draw(key, value)
        self.count.set_value(value)
        return key

    def _current(self) -> tuple[jax.Array, Value]:
        """The key and the count, if they can be used here."""
        check_trace(self.count._cell.trace, self.count, f"draw from the stream {self.tag!r}, which changes its")
        value, key = self.count.get_value(), self.key.get_value()
        if key.shape:
            raise_many_keys(self)
        return usable(key, self.key), value

    def fork(self, *, split: int | tuple[int, ...] | None = None) -> RngStream:
        """A new independent stream, seeded with one draw of this stream.

        Args:
            split: deprecated; use ``split``.
        """
        if split is None:
            return type(self)(self(), tag=self.tag)
        _warn_fork_split()
        return self.split(split)

    def split(self, k: int | tuple[int, ...]) -> RngStream:
        """A new stream of keys, split from one draw of this stream.

        Args:
            k: the number of keys, or their shape.

        Example:
            >>> plait.RngStream(0, tag="params").split((2, 3)).key.shape
            (2, 3)
        """
        shape = key_shape(k)
        return type(self)(jax.random.split(self(), shape), tag=self.tag)

    def broadcast(self, k: int | tuple[int, ...]) -> RngStream:
        """A new stream of copies of one draw of this stream.

        Args:
            k: the number of copies, or their shape.
        """
        shape = key_shape(k)
        return type(self)(jnp.broadcast_to(self(), shape), tag=self.tag)


def skip_key(stream: RngStream) -> None:
    """Advance the counter of a stream as a draw does, without deriving the key; raises the same errors as a draw."""
    stream.count.set_value(_after(stream._current()[1]))


def _warn_fork_split() -> None:
    deprecated("fork(split=k)", since="0.1", instead="split(k)", removed_in="2.0")


class Rngs(_Samplers):
    """Named random streams; a missing name falls back to ``default``.

    Args:
        default: seed or key of the default stream, or a mapping from names to seeds and keys.
        **streams: seeds and keys by name. If the value is a stream, its key is used; the stream is not shared, and the
            counter of the new stream starts at 0.

    Raises:
        ArgumentError: a value is neither a seed, nor a key, nor a stream.

    Example:
        >>> rngs = plait.Rngs(0, dropout=1)
        >>> rngs.params().shape, rngs.dropout().shape, list(rngs)
        ((), (), ['dropout', 'default'])
    """

    def __init__(self, default: Any = None, **streams: Any) -> None:
        if isinstance(default, (Rngs, Mapping)):
            streams = {**dict(default.items()), **streams}
        elif default is not None:
            streams["default"] = default
        for name, source in streams.items():
            setattr(self, name, RngStream(as_key(source), tag=name))

    def __getattr__(self, name: str) -> RngStream:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._stream(name, StreamAttributeError)

    def __getitem__(self, name: str) -> RngStream:
        return self._stream(name, StreamKeyError)

    def _stream(self, name: str, error: type[StreamError]) -> RngStream:
        streams = self.__dict__
        for each in (name, "default"):
            if isinstance(streams.get(each), RngStream):
                return streams[each]
        raise error(
            f"No RngStream named {name!r} found: there is no random stream {name!r} and no default stream",
            found=f"the streams {sorted(self)}",
            expected=f"a stream {name!r} or 'default'" if name != "default" else "a stream 'default'",
            do=f"create it: plait.Rngs({name}=0), or plait.Rngs(0) for a default stream",
        )

    def __call__(self) -> jax.Array:
        """The next key of the default stream."""
        return self._stream("default", StreamAttributeError)()

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in self.__dict__.items() if isinstance(value, RngStream))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(self.__dict__.get(name), RngStream)  # type: ignore[arg-type]

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """The streams that exist, with their names."""
        for name in self:
            yield name, self.__dict__[name]

    def fork(self, *, split: int | tuple[int, ...] | Mapping[FilterLiteral, Any] | None = None) -> Rngs:
        """New independent streams, each seeded with one draw of the old stream.

        Args:
            split: deprecated; use ``split``. Streams that it does not select are forked.

        Example:
            >>> rngs = plait.Rngs(params=0)
            >>> child = rngs.fork()
            >>> bool(child.params() == rngs.params()), int(rngs.params.count[...])
            (False, 2)
        """
        if split is not None:
            _warn_fork_split()
        return self._rewritten({} if split is None else split, RngStream.split, RngStream.fork)

    def split(self, k: int | tuple[int, ...] | Mapping[FilterLiteral, Any]) -> Rngs:
        """New streams of keys, each split from one draw of the old stream.

        Args:
            k: a number or shape for all streams, or a mapping from filters to numbers or shapes. Streams that no filter
                matches, or whose number is ``None``, keep their key; the new counter starts at 0.

        Example:
            >>> rngs = plait.Rngs(params=0, dropout=1).split({"params": 3})
            >>> rngs.params.key.shape, rngs.dropout.key.shape
            ((3,), ())
        """
        return self._rewritten(k, RngStream.split)

    def broadcast(self, k: int | tuple[int, ...] | Mapping[FilterLiteral, Any]) -> Rngs:
        """New streams of copies of one draw each; arguments as in ``split``."""
        return self._rewritten(k, RngStream.broadcast)

    def _rewritten(
        self,
        rules: Any,
        rewrite: Callable[[RngStream, Any], RngStream],
        rest: Callable[[RngStream], RngStream] = lambda stream: stream,
    ) -> Rngs:
        mapping = rules if isinstance(rules, Mapping) else {...: rules}
        checked = [(to_predicate(filter), None if k is None else key_shape(k)) for filter, k in mapping.items()]
        streams = {}
        for name, stream in self.items():
            k = next((k for predicate, k in checked if predicate((name,), stream)), None)
            streams[name] = rest(stream) if k is None else rewrite(stream, k)
        return Rngs(streams)


__dir__ = "RngCount RngKey RngState RngStream Rngs".split
