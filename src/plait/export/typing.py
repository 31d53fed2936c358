"""The names of Orbax Export's ``typing``; ``orbax/`` defines them."""

from .orbax.typing import ApplyFn, ApplyFnInfo

__all__ = ["ApplyFn", "ApplyFnInfo"]
