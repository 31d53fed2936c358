"""``plait.compare``: what it names, what it leaves behind, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError
from plait.inspect.compare.comparison import Compared, Comparison, Departure
from plait.inspect.compare.differences import Difference
from tests.sampling import slow_but

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


class Part(plait.Module):
    def __init__(self, rngs):
        self.linear, self.norm = plait.Linear(4, 4, rngs=rngs), plait.LayerNorm(4, rngs=rngs)
        self.factor = 1.0

    def __call__(self, x):
        return self.norm(self.linear(x) * self.factor)


class Net(plait.Module):
    def __init__(self, rngs=None):
        rngs = rngs or plait.Rngs(0)
        self.parts = [Part(rngs), Part(rngs)]
        self.head = plait.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return self.head(x)


def changed(change, make=Net):
    model = make()
    change(model)
    return model


def test_a_layer_that_departs_is_named_with_both_differences():
    found = plait.compare(Net(), changed(lambda m: setattr(m.parts[1].norm, "epsilon", 1e-2)), X)
    assert (found.departure.path, found.departure.kind) == ("parts[1].norm", "LayerNorm")
    assert found.departure.inputs.largest == 0 < found.departure.output.tolerance < found.departure.output.largest
    a, b = found.departure.output.values
    assert abs(a - b) == pytest.approx(found.departure.output.largest)
    assert not found.agrees
    assert [each.path for each in found.compared[:3]] == ["parts[0].linear", "parts[0].norm", "parts[0]"]


def test_the_code_between_layers_is_named_by_the_module_that_it_belongs_to():
    # The norm comes first whose output departs; but what it was given departs already.
    first, model = Net(), changed(lambda m: setattr(m.parts[1], "factor", 2.0))
    for each in (first, model):
        each.parts[1].norm.epsilon = 1.0
    found = plait.compare(first, model, X).departure
    assert found.path == "parts[1]"
    assert found.inside.endswith("after parts[1].linear: what it passes to parts[1].norm departs already")


def test_models_that_agree_say_so():
    found = plait.compare(Net(), Net(), X)
    assert found.agrees
    assert str(found).startswith("the results agree: they differ by 0,")


def test_what_is_computed_in_another_way_with_the_same_result_is_no_departure():
    """The scale is folded into the next layer."""

    def fold(model):
        model.parts[1].norm.scale[...] = 2 * model.parts[1].norm.scale[...]
        model.head.kernel[...] = model.head.kernel[...] / 2

    found = plait.compare(Net(), changed(fold), X)
    assert found.agrees
    assert not next(each for each in found.compared if each.path == "parts[1].norm").output.is_agreement


class Recurrent(plait.Module):
    def __init__(self, *, reverse=False):
        self.rnn = plait.RNN(plait.SimpleCell(4, 4, rngs=plait.Rngs(0)), reverse=reverse)
        self.rnn.cell.dense_h.kernel[...] = self.rnn.cell.dense_h.kernel[...] + 0.1

    @plait.jit
    def __call__(self, x):
        return self.rnn(x)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", slow_but([False], [False, True]))
def test_the_steps_of_a_loop_are_compared_one_by_one(reverse):
    """From the second step on the carry departs, and all that is made of it."""
    x, make = jnp.ones((2, 3, 4)), lambda: Recurrent(reverse=reverse)
    other = changed(lambda m: setattr(m.rnn.cell, "activation_fn", jax.nn.relu), make)
    for _ in range(2):  # the second time jit has compiled the function already
        assert plait.compare(make(), other, x).departure.path == "rnn.cell"
    other = changed(lambda m: m.rnn.cell.dense_h.kernel.set_value(m.rnn.cell.dense_h.kernel[...].T), make)
    found = plait.compare(make(), other, x).departure
    assert found.path == "rnn.cell.dense_h"


class Stacked(plait.Module):
    """``Net`` with more parts in a stack; a part of two modules in turn with ``period=2``."""

    def __init__(self, *, parts=None):
        rngs = plait.Rngs(0)
        self.parts = plait.Stack(parts or [Part(rngs) for _ in range(3)])
        self.head = plait.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.parts(x))


class Listed(Stacked):
    def __init__(self, *, parts=None):
        super().__init__(parts=parts)
        self.parts = self.parts.to_list()

    __call__ = Net.__call__


def in_turn():
    rngs = plait.Rngs(0)
    return [make(rngs) for _ in range(2) for make in (Part, lambda rngs: plait.Linear(4, 4, rngs=rngs))] + [Part(rngs)]


PARTS = {"one": lambda: None, "in turn": in_turn, "nested": lambda: [Nest(i) for i in range(2)]}


class Nest(plait.Module):
    def __init__(self, seed):
        rngs = plait.Rngs(seed)
        self.inner = plait.Stack([Part(rngs) for _ in range(2)])

    def __call__(self, x):
        return jnp.tanh(self.inner(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "path", "change"),
    [
        pytest.param("one", "parts[1].linear", lambda parts: parts[1].linear, marks=pytest.mark.slow),
        pytest.param("in turn", "parts[2].linear", lambda parts: parts[2].linear, marks=pytest.mark.slow),
        ("in turn", "parts[4].linear", lambda parts: parts[4].linear),
        ("in turn", "parts[3]", lambda parts: parts[3]),
        ("nested", "parts[1].inner[0].linear", lambda parts: parts[1].inner[0].linear),
    ],
)
@pytest.mark.parametrize("other", slow_but([Listed], [Stacked, Listed]))
def test_the_layers_of_a_stack_are_compared_one_by_one(kind, path, change, other):
    stack, model = Stacked(parts=PARTS[kind]()), other(parts=PARTS[kind]())
    clean = plait.compare(stack, model, X)
    assert clean.agrees
    assert path in [each.path for each in clean.compared]
    assert set(clean.only_a) <= {"parts"}
    change(model.parts).kernel[...] += jnp.eye(4)
    for first, second in ((stack, model), (model, stack)):
        found = plait.compare(first, second, X).departure
        assert found is not None
        assert (found.path, found.b_path) == (path, path)
        assert found.inputs.is_agreement


def test_a_stack_inside_of_another_loop_is_named_as_not_recorded():
    class Recurring(Stacked):
        def __call__(self, x):
            step = lambda parts, carry, row: (parts(carry + row), None)
            axes = (plait.StateAxes({plait.Param: None, ...: 0}), plait.Carry, 0)
            return self.head(plait.scan(step, in_axes=axes, out_axes=(plait.Carry, 0))(self.parts, x[0], x)[0])

    found = plait.compare(Recurring(), changed(lambda m: setattr(m.head, "bias", None), Recurring), X)
    assert found.agrees  # the bias is zero
    assert ("parts[2].norm", "a loop around its stack") in found.unseen_a


class Sharing(plait.Module):
    def __init__(self):
        self.first = self.second = plait.Linear(4, 4, rngs=plait.Rngs(0))

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def test_a_shared_layer_is_compared_in_each_of_its_calls():
    class Apart(plait.Module):
        __call__ = Sharing.__call__

        def __init__(self):
            shared = Sharing().first
            self.first, self.second = shared, plait.clone(shared)

    assert plait.compare(Sharing(), Sharing(), X).agrees
    found = plait.compare(Sharing(), changed(lambda m: setattr(m.second, "bias", None), Apart), X)
    assert found.agrees  # the bias is zero
    assert [(each.path, each.b_path) for each in found.compared][:1] == [("first", "first")]


def test_precision_is_that_of_the_narrowest_dtype_of_both():
    def halve(model):
        for part in model.parts:
            part.linear.dtype = jnp.bfloat16

    found = plait.compare(changed(halve), Net(), X)
    assert found.departure.path == "parts[0].linear"
    assert plait.compare(changed(halve), changed(halve), X).agrees
    assert plait.compare(changed(halve), Net(), X, tolerance=0.05).agrees


def test_a_bound_method_is_compared():
    class Coder(Net):
        def encode(self, x):
            return self.parts[0](x)

    a, b = Coder(), changed(lambda m: setattr(m.parts[0].norm, "epsilon", 1.0), Coder)
    assert plait.compare(a.encode, b.encode, X).departure.path == "parts[0].norm"
    assert plait.compare(a.encode, changed(lambda m: setattr(m.head, "bias", None), Coder).encode, X).agrees


class Writing(plait.Module):
    """It writes to its variables and draws random numbers."""

    def __init__(self):
        rngs = plait.Rngs(0)
        self.norm, self.dropout = plait.BatchNorm(4, rngs=rngs), plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        if x.shape[-1] != 4:
            raise RuntimeError("as if by the user")
        return self.dropout(self.norm(x))


@pytest.mark.parametrize("size", [4, 3])
def test_a_plait_model_stays_as_it_is(size):
    """Also if it raises."""
    model = Writing()
    before, methods = plait.split(model), {cls: dict(vars(cls)) for cls in (Writing, plait.BatchNorm, plait.Dropout)}
    values = jax.tree.map(np.asarray, jax.tree.leaves(plait.state(model, (plait.BatchStat, plait.RngCount))))
    if size == 4:
        assert plait.compare(model, model, X).agrees  # the same random numbers
    else:
        with pytest.raises(ArgumentError, match="as if by the user"):
            plait.compare(model, model, X[:, :3])
    assert plait.graphdef(model) == before[0]
    after = jax.tree.leaves(plait.state(model, (plait.BatchStat, plait.RngCount)))
    for old, new in zip(values, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert all(dict(vars(cls)) == found for cls, found in methods.items())


class Growing(plait.Module):
    """Relative differences double in each layer."""

    def __init__(self, error=0.0):
        self.layers = [plait.Linear(4, 4, use_bias=False, rngs=plait.Rngs(0)) for _ in range(8)]
        for layer in self.layers:
            layer.kernel[...] = jnp.eye(4)
        self.layers[1].kernel[...] = jnp.eye(4) * (1 + error)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x) ** 2
        return x


def test_a_difference_below_the_tolerance_is_found_where_it_jumps_if_it_grows_until_the_end():
    found = plait.compare(Growing(), Growing(1e-5), X)
    assert found.departure.path == "layers[1]"
    assert found.departure.output.is_agreement
    assert plait.compare(Growing(), Growing(1e-7), X).agrees


def test_inputs_that_depart_are_the_departure():
    """Then nothing inside is blamed."""
    found = plait.compare(Net(), Net(), X, b_inputs=(X + 1,)).departure
    assert (found.path, found.inputs.largest, found.inside) == ("", pytest.approx(1), None)


NEAR, FAR = Difference(0.0, 2.0, 1e-4), Difference(0.54321, 2.0, 1e-4, (1, 3), (1.0, 1.54321))
REPORTS = {
    "a departure": (
        Departure("norm", "ln.f", "LayerNorm", "Norm", NEAR, FAR, "in its own code"),
        """norm (LayerNorm) departs from ln.f (Norm)
  inputs    0, for values up to 2 (tolerance 0.0001)
  output    0.543, for values up to 2 (tolerance 0.0001)
  values    1 in a, 1.54321 in b, at [1, 3]
  inside    in its own code""",
    ),
    "without what is not known": (
        Departure("", "", "Net", "Other", None, NEAR),
        """the model itself (Net) departs from the model itself (Other)
  inputs    agree
  output    0, for values up to 2 (tolerance 0.0001)""",
    ),
    "agreement": (
        Comparison(None, (Compared("x", "y", FAR), Compared("", "", NEAR))),
        "the results agree: they differ by 0, for values up to 2 (tolerance 0.0001)\n2 modules compared",
    ),
    "remarks": (
        Comparison(
            None, (Compared("", "", NEAR),), ("p", "q"), tuple("stuvwxyz"),
            unseen_a=(("", "cond"), ("e", "scan")), unseen_b=(("f", "vmap"),),
        ),
        "the results agree: they differ by 0, for values up to 2 (tolerance 0.0001)\n1 modules compared; "
        "only in a: p, q; only in b: s, t, u, v, w and 3 more; "
        "not recorded in a: the model itself (in cond), e (in scan); not recorded in b: f (in vmap)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_text(name):
    found, text = REPORTS[name]
    assert str(found) == text
    if name == "a departure":
        assert str(Comparison(found, (Compared("", "", FAR),))) == f"{text}\n1 modules compared"


class Twice(plait.Module):
    """Calls one layer with several inputs, and gives back several results."""

    def __init__(self, change=0.0, *, second=0.0):
        self.layer, self.last = plait.Linear(4, 4, rngs=plait.Rngs(0)), plait.Linear(4, 4, rngs=plait.Rngs(1))
        self.change, self.second = change, second

    def __call__(self, x, *, scale=1.0):
        return {"y": self.last(jnp.tanh(self.layer(x)) * (1 + self.change)) * scale, "z": self.layer(x + self.second)}


def test_keyword_arguments_are_those_of_both_or_of_the_second():
    assert plait.compare(Twice(), Twice(), X, kwargs={"scale": 2.0}).agrees
    other = plait.compare(Twice(), Twice(), X, kwargs={"scale": 2.0}, b_kwargs={"scale": 3.0})
    assert (other.departure.path, other.departure.inside) == (
        "",
        "in its own code, after its submodules, such as layer",
    )
    assert plait.compare(Twice(), Twice(), X, kwargs={"scale": 2.0}, b_kwargs={}).departure is not None
    assert plait.compare(Twice(), Twice(), kwargs={"x": X}).agrees


def test_of_several_calls_of_a_module_the_largest_difference_is_kept_at_its_first_place():
    found = plait.compare(Twice(), Twice(second=0.5), X)
    assert [each.path for each in found.compared] == ["layer", "last", ""]
    assert (found.compared[0].output.is_agreement, found.compared[1].output.largest) == (False, 0)
    assert found.departure.path == ""


def test_where_code_between_layers_departs_the_layers_around_it_are_named():
    found = plait.compare(Twice(), Twice(0.5), X).departure
    assert (found.path, found.kind, found.b_kind) == ("", "Twice", "Twice")
    assert found.inside == "in its own code, after layer: what it passes to last departs already"
    first = plait.compare(Reading(0.0), Reading(1.0), X).departure
    assert first.inside == "in its own code: what it passes to layer departs already"


class Reading(plait.Module):
    def __init__(self, change):
        self.layer, self.change = plait.Linear(4, 4, rngs=plait.Rngs(0)), change

    def __call__(self, x):
        return self.layer(x + self.change)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_inputs_that_a_model_does_not_take_are_told_by_its_name():
    with pytest.raises(ArgumentError, match=r"b cannot be run on these inputs\n +at +b, a Linear\n") as caught:
        plait.compare(Net(), plait.Linear(5, 3, rngs=plait.Rngs(0)), X)
    assert caught.value.__cause__ is not None
    assert "b_inputs=" in caught.value.parts["do"]
    wider = jnp.pad(X, ((0, 0), (0, 1)))
    found = plait.compare(Net(), plait.Linear(5, 3, rngs=plait.Rngs(0)), X, b_inputs=(wider,))
    assert found.departure.path == ""


def test_models_without_a_name_in_common_are_told():
    class Odd(plait.Module):
        def __init__(self):
            self.unlike = plait.Linear(4, 7, rngs=plait.Rngs(0))

        def __call__(self, x):
            return self.unlike(x)[:, :3]

    with pytest.raises(ArgumentError, match=r"no module of one model") as caught:
        plait.compare(Net(), Odd(), X)
    assert "b has unlike" in caught.value.parts["found"]
    assert "names=" in caught.value.parts["do"]
    assert plait.compare(Net(), Odd(), X, names={"unlike": "head"}).departure is not None


@pytest.mark.parametrize(
    ("names", "match"),
    [({"nowhere": "head"}, r"'nowhere', which matches nothing in b"), ({"head": "nowhere"}, r"head -> nowhere")],
)
def test_a_rule_that_leads_nowhere_is_told(names, match):
    with pytest.raises(ArgumentError, match=match):
        plait.compare(Net(), Net(), X, names=names)


def test_a_model_without_outputs_is_told():
    class Silent(plait.Module):
        def __call__(self, x):
            return None

    with pytest.raises(ArgumentError, match=r"a returns no arrays, so there is nothing to compare") as caught:
        plait.compare(Silent(), Net(), X)
    assert caught.value.parts == {
        "at": "a, a Silent",
        "found": "a result without arrays",
        "expected": "an array, or a tuple, list, mapping or dataclass of arrays",
        "do": "return the outputs from the model, or pass a bound method that does: plait.compare(model.encode, ...)",
    }


@pytest.mark.parametrize("model", [Net, 3, {"params": {}}], ids=["class", "number", "state"])
def test_what_is_no_model_is_told(model):
    with pytest.raises(ArgumentTypeError, match=r"compare takes two models\n +at +b\n"):
        plait.compare(Net(), model, X)


class Choosing(plait.Module):
    """A layer that runs in a branch."""

    def __init__(self, choose):
        rngs = plait.Rngs(0)
        self.first, self.second = plait.Linear(4, 4, rngs=rngs), plait.Linear(4, 4, rngs=rngs)
        self.choose = choose

    def __call__(self, x):
        return self.choose(self.second, self.first(x))


BRANCHES = {
    "cond": lambda part, x: plait.cond(True, lambda part, x: part(x), lambda part, x: x, part, x),
    "while_loop": lambda part, x: plait.while_loop(
        lambda carry: carry[0] < 1, lambda carry: (carry[0] + 1, carry[1], carry[1](carry[2])), (0, part, x)
    )[2],
    "cond of JAX": lambda part, x: jax.lax.cond(True, lambda x: part(x), lambda x: x, x),
}


@pytest.mark.parametrize("kind", BRANCHES)
def test_modules_inside_of_branches_are_named_as_not_recorded(kind):
    """CM3: their difference is that of the module around them."""

    def make():
        return Choosing(BRANCHES[kind])

    found = plait.compare(make(), changed(lambda m: setattr(m.second, "bias", plait.Param(jnp.ones(4))), make), X)
    assert found.unseen_a == found.unseen_b == (("second", kind.removesuffix(" of JAX")),)
    assert f"not recorded in a: second (in {kind.removesuffix(' of JAX')})" in str(found)
    assert found.departure.path == ""
    assert [each.path for each in found.compared] == ["first", ""]
    assert plait.compare(make(), make(), X).agrees


class Applied(plait.Module):
    def __init__(self, f):
        self.f = f

    def __call__(self, x):
        return self.f(x)


CUBE = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4, 4)), jnp.float32)
DIFFERENT = {
    "a transpose": (lambda x: x, lambda x: x.swapaxes(0, 1)),
    "channels first": (lambda x: x, lambda x: jnp.moveaxis(x, -1, 1)),
    "a reshape": (lambda x: x, lambda x: x.reshape(4, 16)),
    "an axis of 1": (lambda x: x.mean(-1), lambda x: x.mean(-1, keepdims=True)),
    "other keys": (lambda x: {"a": x}, lambda x: {"b": x}),
    "exchanged keys": (lambda x: {"a": x, "b": -x}, lambda x: {"b": x, "a": -x}),
    "fewer outputs": (lambda x: (x, x), lambda x: (x,)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_outputs_are_compared_as_they_are(name):
    """CM5"""
    f, g = DIFFERENT[name]
    assert not plait.compare(Applied(f), Applied(g), CUBE).agrees
    assert plait.compare(Applied(f), Applied(f), CUBE).agrees


def test_outputs_of_equal_keys_agree_in_any_order():
    a, b = Applied(lambda x: {"a": x, "b": -x}), Applied(lambda x: {"b": -x, "a": x})
    assert plait.compare(a, b, CUBE).agrees
    found = plait.compare(a, Applied(lambda x: {"a": x, "c": -x}), CUBE)
    assert "output    a, b in a and a, c in b\n" in str(found)


def test_integers_are_printed_exactly():
    a, b = Applied(lambda x: jnp.array([5, 123456789])), Applied(lambda x: jnp.array([5, 123456790]))
    text = str(plait.compare(a, b, CUBE))
    assert "1, for values up to 123456790 (tolerance 0)" in text
    assert "values    123456789 in a, 123456790 in b, at [1]" in text


def test_a_model_outside_of_a_branch_agrees_with_one_inside():
    found = plait.compare(Choosing(lambda part, x: part(x)), Choosing(BRANCHES["cond"]), X)
    assert found.agrees
    assert (found.only_a, found.unseen_a, found.unseen_b) == (("second",), (), (("second", "cond"),))
