"""Mistakes with what trains: optimizers, train states, averages and loss scales."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    NothingSelectedWarning,
    OptimizerAttributeError,
    OptimizerError,
    UntrainedPartWarning,
)

from .rows import Row

OPTIMIZER = """
import optax
tx = optax.adam(0.1)
def loss(model, x):
    return (model(x) ** 2).mean()
model = plait.Sequential(plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 2, rngs=rngs))
optimizer = plait.Optimizer(model, tx, wrt=plait.Param)
grads = plait.grad(loss)(model, x)
"""
STATE = """
import optax
class Training(plait.TrainState):
    pass
graphdef, params = plait.split(plait.Linear(2, 3, rngs=rngs))
tx = optax.sgd(0.1)
state = Training.create(graphdef, params=params, tx=tx)
grads = plait.State(plait.to_pure_dict(params))
def loss(params):
    return state.apply(params)(x)[0].sum()
"""
EMA = """
ema = plait.EMA(plait.Linear(2, 3, rngs=rngs), 0.5)
"""

FOREIGN = """
import optax
tx, model = optax.sgd(0.1), plait.Linear(2, 3, rngs=rngs)
class Table: pass
model.table = Table()
model.table.rows = jnp.ones(2)
"""

ROWS = {
    "a plain object with arrays": Row("plait.Optimizer(model, tx, wrt=plait.Param)", UntrainedPartWarning,
        ("at +table", "found +a Table"), setup=FOREIGN),
    "an optimizer for nothing in particular": Row("plait.Optimizer(model, tx)", ArgumentTypeError, "found +no wrt",
        setup=OPTIMIZER),
    "a model and its optimizer for nothing": Row("plait.ModelAndOptimizer(model, tx, wrt=plait.LoRAParam)",
        NothingSelectedWarning, ("at +a Sequential", "found +4 Param"), setup=OPTIMIZER),
    "a function for a transformation": Row("plait.ModelAndOptimizer(model, optax.sgd)", ArgumentTypeError,
        "found +the function sgd", setup=OPTIMIZER),
    "a number for a transformation": Row("plait.Optimizer(model, 1e-3, wrt=plait.Param)", ArgumentTypeError,
        "found +a float"),
    "the model for a transformation": Row("plait.Optimizer(model, model, wrt=plait.Param)", ArgumentTypeError,
        "found +a Sequential", setup=OPTIMIZER),
    "parameters in no group": Row(
        "plait.Optimizer(model, {'**.bias': tx, 'layers[0].**': None}, wrt=plait.Param)",
        OptimizerError,
        setup=OPTIMIZER,
        fix="...: optax.adamw(1e-3)}",
        cure="plait.Optimizer(model, {'**.bias': tx, $, wrt=plait.Param)",
        text="""
            parameters are in no group of the optimizer
              at        layers[1].kernel
              found     the groups '**.bias', 'layers[0].**'
              expected  a group for each parameter that wrt selects
              do        add a last group for all others: {..., ...: optax.adamw(1e-3)}, or {..., ...: None} to freeze
                        them
        """,
    ),
    "a mask made of variables": Row(
        "plait.Optimizer(model, optax.adamw(0.1, mask=decayed(plait.state(model, plait.Param))), wrt=plait.Param)",
        OptimizerError,
        setup=OPTIMIZER + "decayed = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)\n",
        fix="plait.pure(plait.state(model, plait.Param))",
        cure="plait.Optimizer(model, optax.adamw(0.1, mask=decayed($)), wrt=plait.Param)",
        text="""
            a tree that the transformation was made with does not have the structure of the parameters
              at        layers[0].bias, layers[0].kernel, layers[1].bias, layers[1].kernel
              found     a tree of another structure, such as a mask made of variables
              expected  a function of the parameters, or a State of plain values by the paths of the parameters
              do        optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)); or make it
                        from plait.pure(plait.state(model, plait.Param))
        """,
    ),
    "an update without gradients": Row(
        "optimizer.update(grads)",
        ArgumentTypeError,
        setup=OPTIMIZER,
        fix="optimizer.update(model, grads)",
        text="""
            Optimizer.update was called without grads
              found     one argument
              expected  update(model, grads)
              do        pass both: optimizer.update(model, grads); plait.ModelAndOptimizer(model, tx) stores the model
                        and takes update(grads)
        """,
    ),
    "the model of an optimizer without one": Row("optimizer.model", OptimizerAttributeError,
        r"found +an access to \.model", setup=OPTIMIZER),
    "the model for its gradients": Row("optimizer.update(model, model)", OptimizerError,
        (r"at +layers\[0\]\.bias, layers\[0\]\.kernel, layers\[1\]\.bias, layers\[1\]\.kernel",
        r"found +update\(a Sequential, a Sequential\)"),
        setup=OPTIMIZER),
    "its variables for gradients": Row("optimizer.update(model, plait.variables(model))", OptimizerError,
        (r"at +layers\[0\]\.bias, layers\[0\]\.kernel, layers\[1\]\.bias, layers\[1\]\.kernel",
        r"found +update\(a Sequential, a State\)"),
        setup=OPTIMIZER),
    "gradients before the model": Row(
        "optimizer.update(grads, model)",
        OptimizerError,
        setup=OPTIMIZER,
        fix="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
        text="""
            update was given the gradients and the model in the wrong order
              at        layers[0].bias, layers[0].kernel, layers[1].bias, layers[1].kernel
              found     update(a State, a Sequential)
              expected  the model first, then a State of gradients with the same paths: update(model, grads)
              do        grads = plait.grad(loss)(model, x); optimizer.update(model, grads)
        """,
    ),
    "a gradient too few": Row(
        "del grads['layers'][1]['bias']; optimizer.update(model, grads)",
        OptimizerError,
        setup=OPTIMIZER,
        fix="grads = plait.grad(loss, argnums=plait.DiffState(0, plait.Param))(model, x)",
        cure="$; optimizer.update(model, grads)",
        text="""
            the paths of the gradients and of the updated variables differ
              at        layers[1].bias
              found     no gradient for layers[1].bias
              expected  one gradient for each of the 4 variables that wrt=plait.Param selects
              do        differentiate with respect to the same variables: grads = plait.grad(loss,
                        argnums=plait.DiffState(0, plait.Param))(model, x)
        """,
    ),
    "a gradient too many, and one too few": Row(
        "layers = grads['layers']; layers[0]['scale'] = layers[1].pop('bias'); optimizer.update(model, grads)",
        OptimizerError,
        (r"at +layers\[1\]\.bias, layers\[0\]\.scale",
        r"found +no gradient for layers\[1\]\.bias; a gradient for layers\[0\]\.scale, which "),
        setup=OPTIMIZER),
    "a gradient of another shape": Row(
        "grads['layers'][0]['bias'] = jnp.ones((1, 3)); optimizer.update(model, grads)",
        OptimizerError,
        setup=OPTIMIZER,
        cure="optimizer.update(model, grads)",
        text="""
            a gradient does not have the shape of its variable
              at        layers[0].bias
              found     a gradient of shape (1, 3) at layers[0].bias
              expected  shape (3,)
              do        differentiate the same model that is updated; sum or average gradients over added axes first
        """,
    ),
    "a layer more than the optimizer has": Row("model.layers.append(plait.Linear(2, 2, rngs=rngs))\n"
        "optimizer.update(model, plait.grad(loss)(model, x))", OptimizerError,
        (r"at +layers\[2\]\.bias, layers\[2\]\.kernel", "found +2 new, and 4 that match"), setup=OPTIMIZER),
    "other layers than the optimizer has": Row(
        "\n"
        "model.layers[0] = plait.Linear(2, 2, rngs=rngs)\n"
        "model.layers[1] = plait.Sequential(plait.Linear(2, 2, rngs=rngs))\n"
        "optimizer.update(model, plait.grad(loss)(model, x))",
        OptimizerError,
        setup=OPTIMIZER,
        fix="plait.Optimizer(model, tx, wrt=plait.Param)",
        cure="\n"
        "model.layers[0] = plait.Linear(2, 2, rngs=rngs)\n"
        "model.layers[1] = plait.Sequential(plait.Linear(2, 2, rngs=rngs))\n"
        "$.update(model, plait.grad(loss)(model, x))",
        text="""
            the variables of the model do not match the optimizer's state
              at        layers[1].layers[0].bias, layers[1].layers[0].kernel, layers[0].bias, layers[0].kernel,
                        [0].mu.layers[1].bias, [0].mu.layers[1].kernel, [0].nu.layers[1].bias, [0].nu.layers[1].kernel
              found     2 new, 2 with a different shape, 4 that the model lacks, and 0 that match
              expected  the variables that the model had when the optimizer was created
              do        create the optimizer after the model is complete: plait.Optimizer(model, tx, wrt=plait.Param)
        """,
    ),
    "a number for the transformation of a train state": Row("Training.create(graphdef, params=params, tx=1e-3)",
        ArgumentTypeError, "found +a float", setup=STATE),
    "a field that is not there": Row("state.apply('params', 'stats')", OptimizerAttributeError,
        ("^Training has", r"found +the fields \['graphdef', 'params', 'opt_state', 'step', 'tx'\]"), setup=STATE),
    "a gradient too few for a train state": Row("del grads['bias']; state.apply_gradients(grads)", OptimizerError,
        ("at +bias", "found +no gradient for bias"), setup=STATE),
    "a gradient too many for a train state": Row("grads['scale'] = x; state.apply_gradients(grads)", OptimizerError,
        ("at +scale", "found +a gradient for scale, which params does not have"), setup=STATE),
    "gradients of another type for a train state": Row("state.apply_gradients(grads)", OptimizerError,
        ("at +bias, kernel", "found +the same paths, but leaves of different types or metadata"), setup=STATE),
    "an average of an array": Row("EMA({'a': [x], 'b': plait.Param(x)}, decay)", ArgumentTypeError,
        (r"at +a\[0\]", r"found +a jax\.Array"),
        setup="model, decay, EMA = {'a': [x], 'b': plait.Param(x)}, 0.5, plait.EMA"),
    "values of another shape than the averages": Row(
        "ema.update(plait.Linear(4, 3, rngs=rngs))",
        ArgumentError,
        setup=EMA,
        cure="ema.update(plait.Linear(2, 3, rngs=rngs))",
        text="""
            the values do not match the averages
              at        kernel
              found     a value of shape (4, 3)
              expected  a value of shape (2, 3)
              do        update with the model that the EMA was created from, or create a new EMA
        """,
    ),
    "averages without new values": Row("ema.update(plait.Linear(2, 3, use_bias=False, rngs=rngs))", ArgumentError,
        ("at +bias", "found +nothing"), setup=EMA),
    "averages for another model": Row("ema.apply_to(plait.Dict(other=plait.Param(x)))", ArgumentError,
        ("at +bias, kernel", "found +no variable"), setup=EMA),
    "a loss scale that cannot grow": Row(
        "plait.DynamicLossScale(8.0, growth_interval=5, factor=1.0, minimum=2.0, maximum=64.0)", ArgumentError,
        r"found +initial=8\.0, growth_interval=5, factor=1\.0, minimum=2\.0, maximum=64\.0"),
}  # fmt: skip
