"""What goes into an exported function: a name, a dtype, and a shape in which some sizes are free.

A size that is a string is free: the file takes any size there, and sizes with the same name must agree. A size that
is a number is fixed in the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..errors import ArgumentError, ArgumentTypeError
from ..words import describe_type


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """The one input of an exported function.

    Args:
        shape: sizes, fixed (``8``) or free (``"batch"``).
        dtype: dtype of the input.
        name: name of the input in the file's signature.

    Raises:
        ArgumentError: a size that is neither positive nor a name, or a name that is no Python identifier.
        ArgumentTypeError: the shape is a string, or has an entry that is neither ``int`` nor ``str``.

    Example:
        >>> spec = plait.export.InputSpec(("batch", 8, 8, 1))
        >>> spec.open_shape
        (None, 8, 8, 1)
    """

    shape: tuple[int | str, ...]
    dtype: DTypeLike = jnp.float32
    name: str = "x"

    def __post_init__(self) -> None:
        if isinstance(self.shape, str) or not all(isinstance(size, (int, np.integer, str)) for size in self.shape):
            raise ArgumentTypeError(
                "an input shape is a tuple of sizes",
                at=f"InputSpec {self.name!r}",
                found=f"shape={self.shape!r}",
                expected="integers for fixed sizes, names for free ones",
                do='InputSpec(("batch", 8, 8, 1))',
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if not (size.isidentifier() if isinstance(size, str) else size > 0):
                raise ArgumentError(
                    "a size of an input shape is a positive number or a name",
                    at=f"InputSpec {self.name!r}",
                    found=f"{size!r} in shape={self.shape!r}",
                    expected="positive integers for fixed sizes, identifiers such as 'batch' for free ones",
                    do='InputSpec(("batch", 8, 8, 1))',
                )
        if not self.name.isidentifier():
            raise ArgumentError(
                "an input's name becomes a keyword of the exported function",
                found=f"name={self.name!r}",
                expected="a Python identifier",
                do='InputSpec(shape, name="x")',
            )

    @property
    def open_shape(self) -> tuple[int | None, ...]:
        """The shape with ``None`` for each free size."""
        return tuple(None if isinstance(size, str) else int(size) for size in self.shape)


def resolve_input_specs(specs: Any) -> tuple[InputSpec, ...]:
    """One input or several, in order; each an ``InputSpec``, a shape, or an example array.

    Raises:
        ArgumentTypeError: something else.
        ArgumentError: two inputs have one name.

    Example:
        >>> from plait.export.input_spec import resolve_input_specs
        >>> [spec.name for spec in resolve_input_specs({"x": ("batch", 4), "scale": (2,)})]
        ['x', 'scale']
    """
    if isinstance(specs, Mapping):
        found = tuple(_named(name, spec) for name, spec in specs.items())
    elif isinstance(specs, InputSpec) or _is_shape(specs) or hasattr(specs, "dtype"):
        found = (_named("x", specs),)
    elif isinstance(specs, (list, tuple)):
        found = tuple(_named("x" if len(specs) == 1 else f"x_{i}", spec) for i, spec in enumerate(specs))
    else:
        found = (_named("x", specs),)
    names = [spec.name for spec in found]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                "two inputs have the same name",
                at=name,
                found=f"inputs {', '.join(names)}",
                expected="names that differ",
                do="InputSpec(shape, name='tokens')",
            )
    return found


def _named(name: str, spec: Any) -> InputSpec:
    if isinstance(spec, InputSpec):
        return spec
    if _is_shape(spec):
        return InputSpec(tuple(spec), name=name)
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        return InputSpec(tuple(spec.shape), spec.dtype, name)
    raise ArgumentTypeError(
        "an input of an export is described by its shape and dtype",
        at=name,
        found=describe_type(spec),
        expected="an InputSpec, a tuple of sizes (float32), or an example array",
        do='InputSpec(("batch", 128), dtype="int32", name="tokens")',
    )


def _is_shape(spec: Any) -> bool:
    return isinstance(spec, tuple) and all(isinstance(size, (int, np.integer, str)) for size in spec)


def symbolic(specs: Sequence[InputSpec]) -> dict[str, jax.ShapeDtypeStruct]:
    """The inputs as JAX traces them, by name; a free size is the same in all of them."""
    scope = jax.export.SymbolicScope()
    return {
        spec.name: jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(", ".join(map(str, spec.shape)), scope=scope), np.dtype(spec.dtype)
        )
        for spec in specs
    }
