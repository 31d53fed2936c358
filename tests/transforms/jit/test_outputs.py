"""Objects that a jitted function returns: new ones are built anew at each call, the caller's own stay what they are."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.transforms.jit import function as jit_module
from tests.compare import assert_same
from tests.strategies import Leafy, Node

pytestmark = pytest.mark.unchecked  # the check walks the model


class Tagged(plait.Param):
    pass


def model():
    return Node(
        w=Tagged(jnp.arange(3.0), tag="mine", out_sharding=("in",)),
        inner=Leafy(b=plait.BatchStat(jnp.float32(2))),
        count=plait.Variable(jnp.int32(0)),
    )


def loss(m, x):
    return (m.w.value * x).sum() + m.inner.b.value


def gradients(m, x):
    return plait.grad(loss)(m, x)


def loss_and_gradients(m, x):
    m.count.value += 1
    return plait.value_and_grad(loss)(m, x)


def scaled(m, x):
    return jax.tree.map(lambda leaf: leaf * x.astype(leaf.dtype), plait.state(m))


def part_of_a_state(m, x):
    m.count.value += 1
    return {"kept": plait.state(m, plait.BatchStat), "x": [x, None], "new": plait.Param(x)}


def a_new_module(m, x):
    shared = plait.Param(x)
    return Node(first=shared, second=Node(again=shared, n=m.count.value)), shared


def one_variable_twice(m, x):
    new = plait.Param(x * m.w.value)
    return [new, new]


def the_model(m, x):
    m.w.value = m.w.value * x
    return m


def the_model_and_gradients(m, x):
    m.w.value = m.w.value * x
    return m, plait.grad(loss)(m, x), x


def a_variable_of_the_model(m, x):
    m.w.value = m.w.value * x
    return m.w


def a_module_around_a_part(m, x):
    return Node(part=m.inner, x=plait.Param(x))


def an_attribute_is_set(m, x):
    m.note = x
    return plait.state(m, plait.Param)


# Whether a call that looks like an earlier one may take the fast path.
CASES = {
    gradients: True,
    loss_and_gradients: True,
    scaled: True,
    part_of_a_state: True,
    a_new_module: True,
    one_variable_twice: True,
    the_model: True,
    the_model_and_gradients: True,
    a_variable_of_the_model: False,
    a_module_around_a_part: False,
    an_attribute_is_set: False,
}


def described(tree):
    graphdef, state = plait.split(tree)
    return graphdef, plait.to_pure_dict(state)


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_x10_what_is_returned_is_what_the_function_returns_by_itself(f, monkeypatch):
    own, expected = model(), model()
    jitted = plait.jit(f)
    x = jnp.float32(2)
    outs = []
    for turn in range(4):
        if turn == 2 and CASES[f]:
            monkeypatch.setattr(jit_module, "gather", None)
        found, wanted = jitted(own, x), f(expected, x)
        outs.append(found)
        one, other = described([own, found]), described([expected, wanted])
        assert one[0] == other[0]
        assert_same(one[1], other[1])
    monkeypatch.undo()
    first, last = (set(map(id, new_objects(out, own))) for out in (outs[0], outs[-1]))
    assert not first & last  # each call makes objects of its own


def new_objects(out, own):
    known = set(map(id, (item for _, item in plait.iter_graph(own))))
    return [
        item
        for _, item in plait.iter_graph(out)
        if isinstance(item, (plait.Module, plait.Variable)) and id(item) not in known
    ]


@pytest.mark.parametrize("f", [f for f, fast in CASES.items() if fast], ids=lambda f: f.__name__)
def test_what_was_returned_is_the_callers_to_write(f):
    own = model()
    jitted = plait.jit(f)
    before = None
    for _ in range(3):
        out = jitted(own, jnp.float32(1))
        for variable in new_objects(out, own):
            if isinstance(variable, plait.Variable):
                variable.value = variable.value * 0
                variable.set_metadata(note="written")
        graphdef = described([own, jitted(own, jnp.float32(1))])[0]
        assert before in (None, graphdef)  # neither the value nor the metadata reaches what is returned next
        before = graphdef


def test_other_shapes_may_return_other_objects():
    @plait.jit
    def f(m, x):
        return plait.Param(x) if x.ndim else (m, plait.state(m))

    own = model()
    for _ in range(3):
        alone, pair = f(own, jnp.ones(2)), f(own, jnp.ones(()))
        assert type(alone) is plait.Param
        assert pair[0] is own
        assert_same(plait.to_pure_dict(pair[1]), plait.to_pure_dict(plait.state(own)))


def test_objects_come_out_of_a_jit_inside_a_jit():
    inner = plait.jit(the_model_and_gradients)

    @plait.jit
    def outer(m, x):
        same, grads, _ = inner(m, x)
        assert same is m
        grads["w"].value = grads["w"].value + 1  # a variable of this trace
        return grads

    own, expected = model(), model()
    for _ in range(3):
        found = outer(own, jnp.float32(2))
        wanted = the_model_and_gradients(expected, jnp.float32(2))[1]
        wanted["w"].value = wanted["w"].value + 1
        assert_same(plait.to_pure_dict(found), plait.to_pure_dict(wanted))
        assert_same(plait.to_pure_dict(plait.state(own)), plait.to_pure_dict(plait.state(expected)))


@pytest.mark.parametrize("options", [{"donate": True}, {"donate_argnums": 0}, {"keep_unused": True}], ids=str)
def test_a_returned_state_keeps_its_own_buffers(options):
    jitted, own = plait.jit(the_model_and_gradients, **options), model()
    outs = [jitted(own, jnp.float32(2)) for _ in range(3)]
    for same, grads, _ in outs:
        assert same is own
        assert_same(plait.to_pure_dict(grads)["w"], jnp.full(3, 2.0))


def test_stages_return_objects():
    own = model()
    compiled = plait.jit(loss_and_gradients).lower(own, jnp.float32(2)).compile()
    for turn in range(2):
        _, grads = compiled(own, jnp.float32(2))
        assert own.count.value == turn + 1
        assert_same(plait.to_pure_dict(grads)["w"], jnp.full(3, 2.0))
