"""What is seen of a value, by path, in words and bytes that both libraries share."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

# Static attributes of one library's layers that say nothing of a model in the other: settings of plait alone; a mode
# that has another name in plait; and Flax's note of the mode in which an object was made. Of metrics, what is a row of
# its own, so that programs with metrics are compared to their end.
HIDDEN = {
    "MultiHeadAttention": ("keep_rngs", "rotary_fn", "window"),
    "RMSNorm": ("scale_offset",),
    "GRUCell": ("keep_rngs",),
    "LSTMCell": ("keep_rngs",),
    "OptimizedLSTMCell": ("keep_rngs",),
    "SimpleCell": ("keep_rngs",),
    "LoRA": ("lora_rank", "alpha", "rank_stabilized", "dropout_rate", "adapter", "is_active", "is_merged", "dropout"),
    "GroupNorm": ("num_features",),
    "InstanceNorm": ("num_features",),
    "SpectralNorm": ("update_stats", "use_running_average"),
    "WeightNorm": ("deterministic",),
    "Optimizer": ("graph",),
    "ModelAndOptimizer": ("graph",),
    "EMA": ("graph",),
    "Average": ("count", "rest"),
    "Accuracy": ("count", "rest"),
    "Welford": ("count", "rest"),
}

Leaf = Any  # text, or an ArraySeen
Seen = dict[str, Leaf]  # path → what is there


@dataclasses.dataclass(frozen=True)
class ArraySeen:
    """An array: everything about it that a program can find out."""

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    sharding: str
    data: bytes
    kind: str = "array"

    def numbers(self) -> np.ndarray:
        dtype = np.uint32 if self.dtype.startswith("key") else jnp.dtype(self.dtype)
        return np.frombuffer(self.data, dtype)

    def __repr__(self) -> str:
        weak = ", weak" if self.weak else ""
        return f"{self.kind} {self.dtype}{list(self.shape)}{weak}, {self.sharding}: {self.numbers()[:8].tolist()}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception: its class, the builtin class by which a user would catch it, and its text."""

    name: str
    names: tuple[str, ...]
    builtin: str
    text: str

    def __repr__(self) -> str:
        return f"{self.name} ({self.builtin}): {self.text}"


def observe_failure(error: Exception) -> Failure:
    kinds = type(error).__mro__
    builtin = next(kind.__name__ for kind in kinds if kind.__module__ == "builtins")
    return Failure(type(error).__name__, tuple(kind.__name__ for kind in kinds), builtin, _plain(str(error)))


def observe(value: Any, library: ModuleType) -> Seen:
    """A value and all that hangs below it; what has identity is named by its first path."""
    return dict(_walk(value, "", library, {}, []))


def _walk(value: Any, path: str, library: ModuleType, first: dict[int, str], alive: list[Any]) -> Iterator[Any]:
    if isinstance(value, (library.Pytree, library.Variable)):
        alive.append(value)  # an id stays its own while its object lives
        if id(value) in first:
            yield path, f"the same as {first[id(value)] or 'the root'}"
            return
        first[id(value)] = path
    if isinstance(value, library.Variable):
        metadata = sorted((name, _metadata(name, item)) for name, item in value.get_metadata().items())
        yield path, f"{type(value).__name__} {metadata}"
        yield from _walk(value.get_raw_value(), f"{path}.value", library, first, alive)
        return
    if isinstance(value, jax.core.Tracer):
        assert library.__name__ != "plait", f"a tracer has left its trace: {value}"
        yield path, "a tracer that has left its trace"
        return
    array = _array(value)
    if array is not None:
        yield path, array
        return
    children = _children(value, library)
    if children is None:
        yield path, _static(value)
        return
    yield path, type(value).__name__
    for name, child in children:
        yield from _walk(child, f"{path}.{name}", library, first, alive)


def _metadata(name: str, value: Any) -> str:
    """An entry of metadata. One hook and a tuple of one hook say the same."""
    one_hook = name.startswith("on_") and isinstance(value, tuple) and len(value) == 1
    return _static(value[0] if one_hook else value)


def _children(value: Any, library: ModuleType) -> list[tuple[Any, Any]] | None:
    """What hangs below a value, in an order that does not depend on the library; ``None`` for leaves."""
    if isinstance(value, library.GraphDef):
        return None
    if isinstance(value, library.List):
        return list(enumerate(value))
    if isinstance(value, library.Pytree):
        hidden = HIDDEN.get(type(value).__name__, ())
        return sorted(
            (name, item)
            for name, item in vars(value).items()
            if not name.startswith("_pytree__") and name not in hidden
        )
    if isinstance(value, library.FlatState):
        return [(f"[{_static(path)}]", item) for path, item in value]
    if isinstance(value, library.State) or type(value) in (dict, collections.OrderedDict):
        return sorted(((_static(key), item) for key, item in value.items()), key=lambda pair: pair[0])
    if isinstance(value, PartitionSpec):
        return None
    if type(value).__name__ == "SplitBackups":  # what both libraries iterate over
        return [(number, _backup(entry)) for number, entry in enumerate(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    return None


def _backup(entry: Any) -> tuple[Any, ...]:
    """A stream, its key and its counter, which Flax keeps in a tuple."""
    return entry if isinstance(entry, tuple) else (entry.stream, entry.key, entry.count)


def _array(value: Any) -> ArraySeen | None:
    if isinstance(value, jax.ShapeDtypeStruct):
        sharding = _sharding(value.sharding)
        return ArraySeen(str(value.dtype), value.shape, value.weak_type, sharding, b"", "abstract")
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return ArraySeen(str(value.dtype), value.shape, False, "", value.tobytes(), "NumPy array")
    if not isinstance(value, jax.Array):
        return None
    raw = jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value
    return ArraySeen(str(value.dtype), value.shape, raw.weak_type, _sharding(value.sharding), np.asarray(raw).tobytes())


def _sharding(sharding: Any) -> str:
    if isinstance(sharding, NamedSharding):
        named = [*sharding.spec]
        while named and named[-1] is None:  # P('a', None) places as P('a') does
            named.pop()
        return f"{named} over {dict(sharding.mesh.shape)}"
    return "" if sharding is None else f"{len(sharding.device_set)} device"


def _static(value: Any) -> str:
    """A static value as text: what it says, without addresses and without the name of the library."""
    if isinstance(value, (type, np.dtype)):
        return getattr(value, "__name__", str(value))
    if callable(value) and hasattr(value, "__name__"):
        return f"function {value.__name__}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_static, value))})"
    if type(value).__module__ in (builtins.__name__, "jax.sharding"):
        return _plain(repr(value))
    if isinstance(value, Mapping):
        return f"mapping of {sorted(map(_static, value.items()))}"
    if callable(value):
        return f"a {type(value).__name__}"
    return _plain(repr(value)) if type(value).__module__.startswith("jax") else f"a {type(value).__name__}"


def _plain(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)
