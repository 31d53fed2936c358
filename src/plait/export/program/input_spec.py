"""The inputs of an exported function: name, dtype, and a shape with fixed and dynamic sizes.

A size that is a string is dynamic: the file accepts any size there, and sizes with the same name must be equal. A size
that is a number is fixed.
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ...errors import ArgumentError, ArgumentTypeError
from ...util.dtypes import is_number_dtype
from ...util.words import describe_type
from .checks import check_different
from .sizes import read_sizes

UNNAMED = "x"


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """An input of an exported function.

    Args:
        shape: sizes, fixed (``8``) or dynamic (``"batch"``).
        dtype: dtype of the input.
        name: name of the input in the file's signature.

    Raises:
        ArgumentError: a size is neither positive nor a name, JAX does not have the dtype, or the name is not a Python
            identifier.
        ArgumentTypeError: the shape is a string, or an entry is neither ``int`` nor ``str``.

    Example:
        >>> spec = plait.export.InputSpec(("batch", 8, 8, 1))
        >>> spec.open_shape
        (None, 8, 8, 1)
    """

    shape: tuple[int | str, ...]
    dtype: DTypeLike = jnp.float32
    name: str = UNNAMED

    def __post_init__(self) -> None:
        if isinstance(self.shape, str) or not all(isinstance(size, (int, np.integer, str)) for size in self.shape):
            raise ArgumentTypeError(
                "an input shape must be a tuple of sizes",
                at=f"InputSpec {self.name!r}",
                found=f"shape={self.shape!r}",
                expected="integers for fixed sizes, names for dynamic ones",
                do='InputSpec(("batch", 8, 8, 1))',
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if not (size.isidentifier() if isinstance(size, str) else size > 0):
                raise ArgumentError(
                    "a size of an input shape must be a positive number or a name",
                    at=f"InputSpec {self.name!r}",
                    found=f"{size!r} in shape={self.shape!r}",
                    expected="positive integers for fixed sizes, identifiers such as 'batch' for dynamic ones",
                    do='InputSpec(("batch", 8, 8, 1))',
                )
        if not is_number_dtype(self.dtype):
            raise ArgumentError(
                "an input cannot have this dtype",
                at=f"InputSpec {self.name!r}",
                found=f"dtype={self.dtype!r}",
                expected="a dtype of numbers or bool that JAX has",
                do='InputSpec(("batch", 128), dtype="int32")',
            )
        if not (isinstance(self.name, str) and self.name.isidentifier()) or keyword.iskeyword(self.name):
            raise ArgumentError(
                "an input's name must be a valid keyword argument",
                found=f"name={self.name!r}",
                expected="a Python identifier that is not a keyword",
                do='InputSpec(shape, name="x")',
            )

    @property
    def open_shape(self) -> tuple[int | None, ...]:
        """The shape with ``None`` for each dynamic size."""
        return tuple(None if isinstance(size, str) else int(size) for size in self.shape)


def resolve_input_specs(specs: Any) -> tuple[InputSpec, ...]:
    """One input or several, in order; each an ``InputSpec``, a shape, or an example array.

    Raises:
        ArgumentTypeError: an input is something else.
        ArgumentError: two inputs have the same name.

    Example:
        >>> from plait.export.program.input_spec import resolve_input_specs
        >>> [spec.name for spec in resolve_input_specs({"x": ("batch", 4), "scale": (2,)})]
        ['x', 'scale']
    """
    if isinstance(specs, Mapping):
        found = tuple(_renamed(name, _named(name, spec)) for name, spec in specs.items())
    elif isinstance(specs, (list, tuple)) and not _is_shape(specs):
        found = tuple(_named("x" if len(specs) == 1 else f"x_{i}", spec) for i, spec in enumerate(specs))
    else:
        found = (_named("x", specs),)
    pairs = [(f"input {index}", spec.name) for index, spec in enumerate(found)]
    check_different("two inputs have the same name", pairs, "InputSpec(shape, name='tokens')")
    return found


def _renamed(name: str, spec: InputSpec) -> InputSpec:
    """The input under its key in a dictionary, if it does not have a name."""
    return dataclasses.replace(spec, name=name) if spec.name == UNNAMED else spec


def _named(name: str, spec: Any) -> InputSpec:
    if isinstance(spec, InputSpec):
        return _held(spec)
    if _is_shape(spec):
        return InputSpec(tuple(spec), name=name)
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)  # as JAX converts an array
        return InputSpec(tuple(spec.shape), dtype, name)
    raise ArgumentTypeError(
        "an input of an export needs a shape and a dtype",
        at=name,
        found=describe_type(spec),
        expected="an InputSpec, a tuple of sizes (float32), or an example array",
        do='InputSpec(("batch", 128), dtype="int32", name="tokens")',
    )


def _held(spec: InputSpec) -> InputSpec:
    """Raise for a dtype that JAX traces as a narrower one: file and function would differ."""
    narrower = jax.dtypes.canonicalize_dtype(spec.dtype)
    if narrower != np.dtype(spec.dtype):
        raise ArgumentError(
            "JAX has 64-bit dtypes only with jax_enable_x64",
            at=f"InputSpec {spec.name!r}",
            found=f"dtype={np.dtype(spec.dtype).name!r}",
            expected=f"{narrower.name!r}, which the model gets here",
            do=f"InputSpec(..., dtype={narrower.name!r}), or jax.config.update('jax_enable_x64', True) first",
        )
    return spec


def _is_shape(spec: Any) -> bool:
    return isinstance(spec, tuple) and all(isinstance(size, (int, np.integer, str)) for size in spec)


def has_free_sizes(specs: Sequence[InputSpec]) -> bool:
    """Whether a size of an input is a name."""
    return any(None in spec.open_shape for spec in specs)


def symbolic(specs: Sequence[InputSpec]) -> dict[str, jax.ShapeDtypeStruct]:
    """The inputs' shapes for tracing, by name; a named size is the same in all of them."""
    scope = jax.export.SymbolicScope()
    return {
        spec.name: jax.ShapeDtypeStruct(
            read_sizes(", ".join(map(str, spec.shape)), spec.open_shape, scope), np.dtype(spec.dtype)
        )
        for spec in specs
    }
