"""The short text of modules: what differs from the defaults, equal neighbours once, on one screen. (G66)"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait as nnx
from plait.inspect import long_repr
from plait.inspect.module_repr import SCREEN, WIDTH
from tests.sampling import slow_but


class Block(nnx.Module):
    def __init__(self, features, rngs):
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=features, decode=False, rngs=rngs)
        self.up, self.down = (nnx.Linear(*sizes, rngs=rngs) for sizes in ((features, 16), (16, features)))


class Transformer(nnx.Module):
    def __init__(self, blocks=24):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(32, 8, rngs=rngs)
        self.blocks = nnx.List([Block(8, rngs) for _ in range(blocks)])
        self.head = nnx.Linear(8, 32, use_bias=False, rngs=rngs)


class Chain(nnx.Module):
    def __init__(self, inner):
        self.inner = inner


def chain(length):
    return functools.reduce(lambda inner, _: Chain(inner), range(length), nnx.Dict(last=1))


class Held(nnx.Module):
    """Holds any attributes."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


# What differs from the defaults ---------------------------------------------------------------------------------------


class Plain(nnx.Module):
    kind = "plain"

    def __init__(self, size, rate=0.5, *rest, axes=None, **settings):
        self.size, self.rate, self.rest, self.axes, self.settings = size, rate, rest, axes or {}, settings
        self.derived, self.act, self.kind = None, jnp.tanh, "plain"


class Child(Plain):
    def __init__(self, *args, depth=2, **kwargs):
        super().__init__(*args, **kwargs)
        self.depth = depth


class Renamed(Plain):
    def __init__(self, width):
        super().__init__(width)


@nnx.dataclass
class Fields(nnx.Module):
    size: int
    rate: float = 0.5
    names: list = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Plain(3), "Plain(size=3)"),
        (Plain(3, 0.25), "Plain(size=3, rate=0.25)"),
        (Plain(3, 0.5, 7, 8, bias=True), "Plain(size=3, rest=(7, 8), settings={'bias': True})"),
        (Plain(3, axes={"a": 1}), "Plain(size=3, axes={'a': 1})"),
        (Plain(3, (0.5,)), "Plain(size=3)"),
        (Plain(3, (0.5, 0.5)), "Plain(size=3, rate=(0.5, 0.5))"),
        (Child(3), "Child(size=3)"),
        (Child(3, 0.25, depth=5), "Child(depth=5, size=3, rate=0.25)"),
        (Renamed(3), "Renamed(size=3, rate=0.5, rest=(), axes={}, settings={})"),
        (Fields(2), "Fields(size=2, names=[])"),
        (Fields(2, 0.1, ["a"]), "Fields(size=2, rate=0.1, names=['a'])"),
        (nnx.Dropout(0.1, rngs=nnx.Rngs(0)).eval(), None),
    ],
    ids=[
        "least",
        "position",
        "rest",
        "mapping",
        "tuple of one",
        "of two",
        "base",
        "base and own",
        "no defaults",
        "fields",
        "all fields",
        "mode",
    ],
)
def test_attributes_are_shown_if_they_differ_from_the_defaults(module, text):
    """G66: of the constructor, of those of its bases that it passes **kwargs to, and of the class."""
    if text is not None:
        assert repr(module).partition("  #")[0] == text


# Equal neighbours, shared objects -------------------------------------------------------------------------------------


def transformer(blocks=24):
    return nnx.eval_shape(lambda: Transformer(blocks))


def test_equal_neighbours_are_one():
    text = repr(transformer())
    assert "24 × Block(" in text
    assert text.count("LayerNorm(") == 1
    assert "head=Linear(in_features=8, out_features=32, use_bias=False" in text


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([nnx.Param(jnp.ones(3)) for _ in range(24)], "List(24 × Param(float32[3]))"),
        ([nnx.Param(1.0), nnx.Param(1.0), nnx.Param(2.0)], "List(2 × Param(1.0), Param(2.0))"),
        ([nnx.Dict(n=nnx.Variable(jnp.int32(i))) for i in range(3)], "List(3 × Dict(n=Variable(int32[])))"),
        ([nnx.Dict(n=1), nnx.Dict(n=1), nnx.Dict(n=2)], "List(2 × Dict(n=1), Dict(n=2))"),
        ([nnx.Param(1.0), nnx.Dict(), nnx.Param(1.0)], "List(Param(1.0), Dict(), Param(1.0))"),
        ([1, 1, 1], "List(1, 1, 1)"),
    ],
    ids=["variables", "numbers", "modules", "attributes", "apart", "static"],
)  # fmt: skip
def test_what_counts_as_equal(items, text):
    """G66: modules with other numbers, variables that look the same."""
    assert repr(nnx.List(items)).partition("  #")[0] == text


def test_shared_modules_and_cycles_show_dots():
    shared, model = nnx.Dict(n=1), nnx.Dict()
    model.parts, model.owner = [shared, shared, {"again": shared}], [model]
    assert repr(model) == "Dict(parts=[Dict(n=1), Dict(...), {'again': Dict(...)}], owner=[Dict(...)])"


# One screen -----------------------------------------------------------------------------------------------------------


class Many(nnx.Module):
    """5,001 modules, none like its neighbour."""

    def __init__(self):
        self.groups = [[nnx.Dict(n=100 * i + j) for j in range(49)] for i in range(100)]
        self.named = nnx.Dict({f"part{i}": nnx.Dict(n=i) for i in range(100)})


LARGE = {
    "transformer": transformer,
    "many": Many,
    "chain": lambda: chain(150),
    "long chain": lambda: chain(400),
    "wide": lambda: Held(**{f"name{i}": nnx.Dict(size=i, inner=nnx.Dict(n=i)) for i in range(300)}),
    "names": lambda: Held(**{f"{'name' * 50}{i}": nnx.Dict(n=nnx.Dict(m=i)) for i in range(30)}),
    "lines": lambda: Held(**{f"part{i}": nnx.Dict(inner=nnx.Dict(text=Lines(100))) for i in range(30)}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", slow_but(lambda kind: kind not in ("transformer", "many"), LARGE))
def test_a_large_model_stays_on_one_screen(kind):
    model = LARGE[kind]()
    lines = repr(model).split("\n")
    assert 2 < len(lines) <= SCREEN
    assert "more" in repr(model) or "×" in repr(model)
    if kind != "names":
        assert max(map(len, lines)) <= WIDTH


def test_the_long_form_has_everything():
    model = transformer(3)
    text = long_repr(model)
    assert text.count("Block(") == 3
    assert text.count("use_bias=True") == 3 * 8
    assert text.count("use_bias=False") == 1
    assert long_repr(model) == text
    assert repr(model) == repr(transformer(3))  # the form is that of the call alone


# Values ---------------------------------------------------------------------------------------------------------------


class Lines:
    def __init__(self, count):
        self.count = count

    def __repr__(self):
        return "\n".join(f"line {i}" for i in range(self.count))


class Broken:
    def __repr__(self):
        raise RuntimeError("broken")


class Wordless:
    def __repr__(self):
        return 3


class Odd:
    """Cannot be hashed, compared, counted or printed."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("not comparable")

    def __repr__(self):
        return "Odd"


class Unhashable(Odd):
    def __hash__(self):
        raise RuntimeError("no hash")


VALUES = {
    "array": (np.ones((1000, 1000)), "value=Array(shape=(1000, 1000), dtype=float64)"),
    "jax": (jnp.ones((3, 4)), "value=Array(shape=(3, 4), dtype=float32)"),
    "text": ("one\ntwo", r"value='one\ntwo'"),
    "lines": (Lines(3), "Held(\n  value=line 0\n  line 1\n  line 2\n)"),
    "many lines": (Lines(100), "line 7\n  ... 92 more lines"),
    "long text": ("x" * 10_000, "value='" + "x" * 399 + "..."),
    "numbers": ([*range(100_000)], "99, 100, 101,..."),
    "broken": (Broken(), "value=<Broken, whose repr raises RuntimeError>"),
    "broken inside": ([Broken()], "value=<list, whose repr raises RuntimeError>"),
    "wordless": (Wordless(), "value=<Wordless, whose repr raises TypeError>"),
    "not comparable": (Odd(), "value=Odd"),
    "no hash": (Unhashable(), "value=Odd"),
    "shape": (jax.ShapeDtypeStruct((2,), jnp.int8), "value=ShapeDtypeStruct(shape=(2,), dtype=int8)"),
    "shape in a variable": (nnx.Param(jax.ShapeDtypeStruct((2,), jnp.int8)), "value=Param(int8[2])"),
    "number": (nnx.Param(jnp.float32(1.5)), "value=Param(1.5)"),
    "key": (nnx.Variable(jax.random.key(0)), "value=Variable(key<fry>[])"),
    "metadata": (nnx.Param(jnp.ones(2), note="n", broken=Broken()), "note='n', broken=<Broken, whose repr raises"),
    "tree": (nnx.Variable({"a": jnp.ones(2)}), "value=Variable( # 2 (8 B)\n    value={'a':"),
    "state": (nnx.State({"a": nnx.Param(jnp.ones(2))}), "value=State({'a': Param(float32[2])})"),
    "flat state": (nnx.State({"a": nnx.Param(1)}).flat_state(), "value=FlatState({('a',): Param(1)})"),
    "nested": ([[{"a": nnx.Param(1)}]], "value=[[{'a': Param(1)}]]"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_any_value_can_be_shown(kind):
    value, expected = VALUES[kind]
    text = repr(Held(value=value))
    assert expected in text
    assert len(text) < 1000


def test_a_broken_value_is_named_in_the_long_form_too():
    assert long_repr(Held(value=Broken())) == "Held(value=<Broken, whose repr raises RuntimeError>)"
    assert "whose repr raises RecursionError" in long_repr(chain(300))


class Own(nnx.Module):
    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"<own of {self.inner!r}>"


def test_a_repr_of_the_users_is_kept():
    assert repr(nnx.Dict(a=Own(nnx.Dict(n=1)))) == "Dict(a=<own of Dict(n=1)>)"
    model = nnx.Dict()
    model.a = Own(model)
    assert repr(model) == "Dict(a=<own of Dict(...)>)"
    with pytest.raises(RuntimeError, match="broken"):
        repr(Own(Broken()))
    assert repr(nnx.Dict(n=1)) == "Dict(n=1)"


def test_tracers_show_shape_and_dtype():
    texts = []

    @nnx.jit
    def look(model, x):
        texts.append(repr(nnx.Dict(model=model, seen=nnx.data(x))))

    look(nnx.Dict(w=nnx.Param(jnp.ones(2))), jnp.int32(3))
    expected = "Dict(model=Dict(w=Param(float32[2])), seen=Array(shape=(), dtype=int32))"
    assert [text.partition("  #")[0] for text in texts] == [expected]
