"""Ask 3: errors name the path, both traces in words, and a fix that runs.

Each mistake is a piece of a user's program with the whole message that it gives. The fix stands in the message, word
for word, and the test runs it.
"""

# ruff: noqa: E501 - the messages stand here as they are printed
import dataclasses
import textwrap

import jax
import jax.numpy as jnp
import optax
import pytest

import plait
from tests.sampling import slow_but

pytestmark = [
    pytest.mark.usefixtures("users_promotion"),
    pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning"),
]


class Block(plait.Module):
    def __init__(self, rngs):
        self.linear = plait.Linear(4, 4, rngs=rngs)
        self.norm = plait.BatchNorm(4, use_running_average=None, rngs=rngs)
        self.drop = plait.Dropout(0.5)
        self.calls = plait.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        return self.linear(x)


class Model(plait.Module):
    def __init__(self, rngs):
        self.blocks = [Block(rngs), Block(rngs)]
        self.head = plait.Linear(4, 1, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()


@dataclasses.dataclass
class Config:
    size: int = 4

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What a user writes, what plait answers, and which part of the answer to follow.

    Attributes:
        setup: lines before; ``model`` and ``x`` are there already.
        wrong: the line that raises.
        error: the class of the error.
        message: all of it.
        fix: a piece of the message that is Python, taken literally.
        then: what has to run after the fix; the mistake with the fix in place.
    """

    wrong: str
    error: type[Exception]
    message: str
    fix: str
    setup: str = ""
    then: str = ""


TOP = "the top level (no JAX transform)"
JITTED = "a function under jit (<lambda>)"
LINEAR = "a function under linearization (grad, vjp)"
CARRIED = "make the model an argument of the function, and use plait's own transform, which keeps the change: "


def trace_error(what, at, kind, found, fix):
    return f"""
        Cannot mutate {kind}: cannot {what} from a different trace than its own
          at        {at}
          found     the current trace is {found}
          expected  {TOP}, where the {kind} was created
          do        {CARRIED}{fix}
    """


COUNTING = """
    def f(model, x):
        model.blocks[1].calls += 1
        return model(x)
"""
MODELS_AND_GRADS = """
    loss = lambda model, x: model(x)
    optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)
    grads = plait.grad(loss)(model, x)
"""

MISTAKES = {
    "a captured model is written in jit": Mistake(
        setup=COUNTING,
        wrong="jax.jit(lambda x: f(model, x))(x)",
        error=RuntimeError,
        message=trace_error(
            "change the value of BatchStat",
            "model.blocks[1].calls (a BatchStat)",
            "BatchStat",
            JITTED,
            "plait.jit(f)(model, x)",
        ),
        fix="plait.jit(f)(model, x)",
        then="assert model.blocks[1].calls == 1",
    ),
    "a captured model is written in grad": Mistake(
        setup=COUNTING,
        wrong="jax.grad(lambda x: f(model, x))(x)",
        error=RuntimeError,
        message=trace_error(
            "change the value of BatchStat",
            "model.blocks[1].calls (a BatchStat)",
            "BatchStat",
            LINEAR,
            "plait.grad(f)(model, x), with argnums=1 for the gradient with respect to x alone",
        ),
        fix="plait.grad(f)(model, x)",
        then="assert model.blocks[1].calls == 1",
    ),
    "a captured model gets an attribute": Mistake(
        setup="""
            def f(model, x):
                model.blocks[0].scale = x.mean()
                return model(x)
        """,
        wrong="plait.jit(lambda x: f(model, x))(x)",
        error=RuntimeError,
        message=trace_error(
            "set the attribute 'scale' of a Block",
            "model.blocks[0] (a Block)",
            "Block",
            JITTED,
            "plait.jit(f)(model, x)",
        ),
        fix="plait.jit(f)(model, x)",
        then="assert model.blocks[0].scale == 1",
    ),
    "a captured stream is drawn from": Mistake(
        setup="""
            def f(model, x):
                return x + model.rngs.noise.normal(x.shape)
        """,
        wrong="jax.jit(lambda x: f(model, x))(x)",
        error=RuntimeError,
        message=trace_error(
            "draw from the stream 'noise', which changes its RngCount",
            "model.rngs.noise.count (a RngCount)",
            "RngCount",
            JITTED,
            "plait.jit(f)(model, x)",
        ),
        fix="plait.jit(f)(model, x)",
        then="assert model.rngs.noise.count == 1",
    ),
    "a captured model is returned": Mistake(
        setup="f = lambda model, x: model.blocks[0]",
        wrong="plait.jit(lambda x: f(model, x))(x)",
        error=ValueError,
        message=f"""
            jit cannot return an object that the function captured from outside
              at        model.blocks[0] (a Block)
              found     a Block of {TOP}
              expected  objects that were passed as arguments or created inside
              do        make the model an argument of the function: plait.jit(f)(model, x)
        """,
        fix="plait.jit(f)(model, x)",
        then="assert out is model.blocks[0]",
    ),
    "a bound method": Mistake(
        wrong="plait.jit(model.blocks[1].__call__)",
        error=ValueError,
        message="""
            jit does not support bound methods, but got a bound method of a module
              at        model.blocks[1] (a Block)
              found     the method '__call__' bound to a Block
              expected  a function that takes the module as an argument
              do        decorate the method in the class (@plait.jit), or call plait.jit(Block.__call__)(block, x)
        """,
        fix="plait.jit(Block.__call__)(block, x)",
        setup="block = model.blocks[1]",
    ),
    "an input of another size": Mistake(
        wrong="model(jnp.ones((2, 3)))",
        error=ValueError,
        message="""
            the last axis of the input does not fit the Linear
              at        blocks[0].linear (a Linear)
              found     an input of shape (2, 3)
              expected  shape (..., 4), since in_features=4
              do        pass an input with 4 features, or create the layer for this input: plait.Linear(3, 4, rngs=rngs)
        """,
        fix="plait.Linear(3, 4, rngs=rngs)",
        then="model.blocks[0].linear = out; model(jnp.ones((2, 3)))",
    ),
    "a list as the input": Mistake(
        setup="x = [1.0, 2.0, 3.0, 4.0]",
        wrong="model(x)",
        error=TypeError,
        message="""
            a Linear takes an array
              at        blocks[0].linear (a Linear)
              found     a list
              expected  a JAX or NumPy array
              do        convert it first: jnp.asarray(x)
        """,
        fix="jnp.asarray(x)",
        then="model(out)",
    ),
    "a mode that nobody set": Mistake(
        wrong="model.blocks[1].norm(x)",
        error=ValueError,
        message="""
            No `use_running_average` argument was provided to BatchNorm
              at        model.blocks[1].norm (a BatchNorm)
              found     use_running_average=None in the constructor and in the call
              expected  True or False in one of the two
              do        set it in the constructor: BatchNorm(..., use_running_average=True); or in the call: layer(x, use_running_average=True); or for the whole model: plait.view(model, use_running_average=True)
        """,
        fix="plait.view(model, use_running_average=True)",
        then="out.blocks[1].norm(x)",
    ),
    "a dropout without a stream": Mistake(
        setup="layer = model.blocks[1].drop",
        wrong="layer(x)",
        error=ValueError,
        message="""
            no `rngs` argument was provided to Dropout: it has no random stream to draw its masks from
              at        model.blocks[1].drop (a Dropout)
              found     rngs=None in the constructor and in the call
              expected  an Rngs, a RngStream or a key in one of the two
              do        pass rngs to the constructor: Dropout(..., rngs=rngs); or to the call: layer(x, rngs=plait.Rngs(dropout=0))
        """,
        fix="layer(x, rngs=plait.Rngs(dropout=0))",
    ),
    "a seed where streams belong": Mistake(
        setup="make = lambda **options: plait.Linear(2, 2, **options)",
        wrong="make(rngs=7)",
        error=TypeError,
        message="""
            a Linear cannot draw keys from rngs of this type
              at        a Linear
              found     an int
              expected  an Rngs
              do        for example rngs=plait.Rngs(7)
        """,
        fix="rngs=plait.Rngs(7)",
        then="make(rngs=rngs)",
    ),
    "data under a static mark": Mistake(
        setup="self, scales = model.blocks[0], [plait.Param(1.0)]",
        wrong="self.scales = plait.static(scales)",
        error=ValueError,
        message="""
            Found data under an attribute marked static
              at        Block.scales[0]
              found     a Param
              expected  numbers, strings, functions and other values without arrays, variables or modules
              do        remove the mark, or mark it as data: self.scales = plait.data(scales)
        """,
        fix="self.scales = plait.data(scales)",
        then="assert plait.state(model)['blocks'][0]['scales'][0] == 1",
    ),
    "a mark inside a container": Mistake(
        setup="self, scales = model.blocks[0], [jnp.ones(()), jnp.ones(())]",
        wrong='self.scales = [plait.data(scale) for scale in "ab"]',
        error=ValueError,
        message="""
            plait.data() was used inside a container
              at        Block.scales
              found     data('a') inside a list
              expected  marks on whole attributes only
              do        remove the marks from the elements; containers of modules and arrays need none, mark others as a whole: self.scales = plait.data(scales)
        """,
        fix="self.scales = plait.data(scales)",
        then="assert plait.state(model)['blocks'][0]['scales'][1] == 1",
    ),
    "filters that leave something over": Mistake(
        setup="del model.rngs, model.blocks[1], model.blocks[0].norm",
        wrong="plait.split(model, plait.Param)",
        error=ValueError,
        message="""
            Non-exhaustive filters: some leaves match none of them
              at        blocks[0].calls (BatchStat)
              found     1 of 5 leaves not matched by plait.Param
              expected  filters that together match every leaf
              do        add `...` as the last filter, for all other leaves: plait.split(model, plait.Param, ...)
        """,
        fix="plait.split(model, plait.Param, ...)",
        then="assert len(out) == 3",
    ),
    "a state that lacks a leaf": Mistake(
        setup="""
            graphdef, part = plait.split(model)
            State, rest = plait.State, plait.state(model)
            del part["blocks"][1]["calls"]
        """,
        wrong="plait.merge(graphdef, part)",
        error=ValueError,
        message="""
            Incorrect number of leaves: the state lacks a leaf of the graphdef
              at        blocks[1].calls of a Block
              found     nothing
              expected  a BatchStat
              do        pass a state of the same model; add missing parts with State.merge(part, rest)
        """,
        fix="State.merge(part, rest)",
        then="plait.merge(graphdef, out)",
    ),
    "gradients of a part": Mistake(
        setup=MODELS_AND_GRADS + "    del grads['blocks'][1]['linear']['bias']\n",
        wrong="optimizer.update(model, grads)",
        error=ValueError,
        message="""
            the paths of the gradients and of the updated variables differ
              at        blocks[1].linear.bias
              found     no gradient for blocks[1].linear.bias
              expected  one gradient for each of the 10 variables that wrt=plait.Param selects
              do        differentiate with respect to the same variables: grads = plait.grad(loss, argnums=plait.DiffState(0, plait.Param))(model, x)
        """,
        fix="grads = plait.grad(loss, argnums=plait.DiffState(0, plait.Param))(model, x)",
        then="optimizer.update(model, grads)",
    ),
    "the model as its own gradients": Mistake(
        setup="model = model.head; x = jnp.ones((1, 4)); loss = lambda model, x: model(x).sum()\n"
        "optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)",
        wrong="optimizer.update(model, model)",
        error=ValueError,
        message="""
            update was given the model instead of gradients
              at        bias, kernel
              found     update(a Linear, a Linear)
              expected  the model first, then a State of gradients with the same paths: update(model, grads)
              do        grads = plait.grad(loss)(model, x); optimizer.update(model, grads)
        """,
        fix="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
        then="assert model.bias == -0.1",
    ),
    "a model that grew after its optimizer": Mistake(
        setup="""
            tx = optax.adam(0.1)
            optimizer = plait.Optimizer(model, tx, wrt=plait.Param)
            model.blocks[0].gain = plait.Param(jnp.ones(()))
            loss = lambda model, x: model(x) * model.blocks[0].gain
            grads = plait.grad(loss)(model, x)
        """,
        wrong="optimizer.update(model, grads)",
        error=ValueError,
        message="""
            the variables of the model do not match the optimizer's state
              at        blocks[0].gain
              found     1 new, and 10 that match
              expected  the variables that the model had when the optimizer was created
              do        create the optimizer after the model is complete: plait.Optimizer(model, tx, wrt=plait.Param)
        """,
        fix="plait.Optimizer(model, tx, wrt=plait.Param)",
        then="out.update(model, grads)",
    ),
    "one buffer donated twice": Mistake(
        setup="""
            model.blocks[1].linear.bias.value = model.blocks[0].linear.bias.value
            variable = model.blocks[1].linear.bias

            @plait.jit(donate_argnums=0)
            def step(model):
                for block in model.blocks:
                    block.linear.bias += 1
        """,
        wrong="step(model)",
        error=ValueError,
        message="""
            two variables share one buffer, which cannot be donated
              at        model.blocks[0].linear.bias and model.blocks[1].linear.bias
              found     the same array in both
              expected  a separate buffer for each donated variable
              do        copy one of them first: variable.value = jnp.copy(variable.value), or model = plait.clone(model, arrays=True) for the whole model
        """,
        fix="variable.value = jnp.copy(variable.value)",
        then="step(model)\nassert variable[0] == 1",
    ),
    "a name given to jit as an array": Mistake(
        setup="""
            def step(model, x, mode):
                return model(x) if mode == "fast" else x
        """,
        wrong='plait.jit(step)(model, x, "fast")',
        error=TypeError,
        message="""
            jit: step was called with an argument that is not an array
              at        argument mode
              found     a str: 'fast'
              expected  arrays, numbers, modules, and containers of them
              do        make it static: plait.jit(step, static_argnames='mode')
        """,
        fix="plait.jit(step, static_argnames='mode')",
        then='out(model, x, "fast")',
    ),
}


@pytest.mark.parametrize("name", slow_but(lambda name: name != "a model that grew after its optimizer", MISTAKES))
def test_a_mistake_is_explained_and_its_fix_runs(name):
    mistake = MISTAKES[name]
    program = {"jax": jax, "jnp": jnp, "optax": optax, "plait": plait, "dataclasses": dataclasses}
    program |= {"Block": Block, "Config": Config, "rngs": plait.Rngs(0, noise=1), "x": jnp.ones((2, 4))}
    program["model"] = Model(program["rngs"])
    run(mistake.setup, program)
    with pytest.raises(mistake.error) as caught:
        run(mistake.wrong, program)
    assert isinstance(caught.value, plait.errors.PlaitError)
    assert str(caught.value) == textwrap.dedent(mistake.message).strip()
    assert mistake.fix in str(caught.value)
    try:
        program["out"] = eval(mistake.fix, program)
    except SyntaxError:  # statements, or a keyword argument, which reads as an assignment
        run(mistake.fix, program)
    run(mistake.then, program)


def run(code, program):
    exec(textwrap.dedent(code), program)


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 12
