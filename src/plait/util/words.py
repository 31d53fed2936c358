"""English for error messages."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

# Words that begin with a vowel letter but a consonant sound; and letters whose names begin with a vowel sound.
_SPOKEN_WITH_CONSONANT = ("eu", "one", "ufunc", "uint", "uni", "use")
_SPOKEN_WITH_VOWEL = "AEFHILMNORSX"
_USERS_WORDS = {"ArrayImpl": "jax.Array"}


def with_article(name: str) -> str:
    """A name with its article: ``an int``, ``a uint8``, ``an Embed``, ``an RNNCell``, ``a GRUCell``."""
    if name == "ndarray" or (name[:2].isupper() and len(name) > 1):
        vowel = name == "ndarray" or name[0] in _SPOKEN_WITH_VOWEL
    else:
        lower = name.lower()
        vowel = lower.startswith(tuple("aeiou")) and not lower.startswith(_SPOKEN_WITH_CONSONANT)
    return f"{'an' if vowel else 'a'} {name}"


def name_of_class(cls: type) -> str:
    """A class as a program writes it: ``plait.Param``, ``jax.Array``, or ``Scale`` for a user's class."""
    package = cls.__module__.split(".")[0]
    return f"{package}.{cls.__name__.rpartition('.')[2]}" if package in ("plait", "jax") else cls.__name__


def text_of(error: BaseException) -> str:
    """The text of an error; if that raises, what Python prints instead in a traceback."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def first_few(texts: Collection[str], most: int = 8) -> str:
    """The first of some texts, and how many more there are: ``a, b and 3 more``."""
    left = len(texts) - most
    return ", ".join(islice(texts, most)) + (f" and {left} more" if left > 0 else "")


def describe_filter(filter: Any) -> str:
    """A filter as code: ``plait.Param``, ``...``, ``plait.PathContains('bias')``."""
    if isinstance(filter, type):
        return name_of_class(filter)
    if isinstance(filter, (tuple, list)):
        return f"({', '.join(map(describe_filter, filter))}{',' if len(filter) == 1 else ''})"
    shown = "..." if filter is ... else repr(filter)  # a path pattern is shown as a string
    return f"plait.{shown}" if type(filter).__module__.split(".")[0] == "plait" and shown[0].isalpha() else shown


def describe_type(value: Any) -> str:
    """The type of a value, with its article: ``an int``; ``None`` and classes are named themselves."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    if name.endswith("Tracer"):
        return "a traced array"
    return with_article(_USERS_WORDS.get(name, name))


def in_bytes(count: float) -> str:
    """A human-readable number of bytes: ``1.5 MiB``."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
