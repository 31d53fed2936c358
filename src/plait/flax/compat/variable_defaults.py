"""The default flags of new variables, as Flax sets and shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core.settings import Restoring, defaults


class _VariableDefaults(Restoring, Mapping[str, bool]):
    def __repr__(self) -> str:
        return f"VarDefaults({', '.join(f'{name}={value}' for name, value in self.items())})"

    hijax = property(lambda self: defaults.hijax)
    ref = property(lambda self: defaults.ref)

    def __getitem__(self, name: str) -> bool:
        return {"hijax": self.hijax, "ref": self.ref}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("hijax", "ref"))

    def __len__(self) -> int:
        return 2


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> _VariableDefaults:
    """The default flags of new variables in this thread or task; keywords set them.

    Args:
        hijax: not supported by plait; with ``True``, constructing a variable raises an error.
        ref: whether new variables store their value in a JAX reference.

    Returns:
        A mapping of the current flags. As a context manager or decorator it restores the previous ones.

    Example:
        >>> with plait.var_defaults(ref=True):
        ...     v = plait.Param(jnp.zeros(2))
        >>> v.ref, plait.var_defaults()["ref"]
        (True, False)
    """
    given = {"hijax": hijax, "ref": ref}
    return _VariableDefaults(defaults, **{name: value for name, value in given.items() if value is not None})


class use_eager_sharding(Restoring):
    """Set whether new variables of this thread or task are placed on devices as their metadata says (default ``True``).

    Takes effect immediately; as a context manager or decorator it restores the previous setting.

    Example:
        >>> with plait.use_eager_sharding(False):
        ...     v = plait.Param(jnp.zeros(2))
        >>> v.eager_sharding, plait.use_eager_sharding.current_value()
        (False, True)
    """

    def __init__(self, value: bool, /) -> None:
        super().__init__(defaults, eager_sharding=bool(value))

    @staticmethod
    def current_value() -> bool:
        """The setting of the thread."""
        return defaults.eager_sharding


def using_eager_sharding() -> bool:
    """Whether new variables of this thread are placed on devices according to their metadata.

    Example:
        >>> plait.using_eager_sharding()
        True
    """
    return defaults.eager_sharding
