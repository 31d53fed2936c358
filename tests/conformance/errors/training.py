"""Mistakes with what trains: optimizers, train states, averages and loss scales."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    NothingSelectedWarning,
    OptimizerAttributeError,
    OptimizerError,
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
LAYER_MORE = "model.layers.append(plait.Linear(2, 2, rngs=rngs))\n"
OTHER_LAYERS = """
model.layers[0] = plait.Linear(2, 2, rngs=rngs)
model.layers[1] = plait.Sequential(plait.Linear(2, 2, rngs=rngs))
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
RATES = OPTIMIZER + "inject = optax.inject_hyperparams(optax.sgd)\n"
TWO_RATES = RATES + "optimizer = plait.Optimizer(model, optax.chain(inject(0.1), inject(0.2)), wrt=plait.Param)\n"
EMA = """
ema = plait.EMA(plait.Linear(2, 3, rngs=rngs), 0.5)
"""

ROWS = {
    # optimizers
    "an optimizer for nothing in particular": Row(
        "plait.Optimizer(model, tx)",
        ArgumentTypeError,
        fix="Optimizer(model, tx, wrt=plait.Param)",
        cure="plait.$",
        setup=OPTIMIZER,
        text="""
            Missing required argument `wrt`: Optimizer does not know what to update; wrt is missing
              found     no wrt
              expected  a filter that selects variables of the model
              do        for example Optimizer(model, tx, wrt=plait.Param); plait.ModelAndOptimizer(model,
                        tx) stores the model, and updates its Params
        """,
    ),
    "a model and its optimizer for nothing": Row(
        "plait.ModelAndOptimizer(model, tx, wrt=plait.LoRAParam)",
        NothingSelectedWarning,
        fix="wrt=plait.Param",
        cure="plait.ModelAndOptimizer(model, tx, $)",
        setup=OPTIMIZER,
        text="""
            ModelAndOptimizer: the filter plait.LoRAParam selects nothing, so no update will change the model
              at        a Sequential
              found     4 Param
              expected  at least one variable that the filter matches
              do        select variables that the model has, such as wrt=plait.Param
        """,
    ),
    "a function for a transformation": Row(
        "plait.ModelAndOptimizer(model, optax.sgd)",
        ArgumentTypeError,
        fix="tx=optax.sgd(1e-3)",
        cure="plait.ModelAndOptimizer(model, $)",
        setup=OPTIMIZER,
        text="""
            tx of ModelAndOptimizer is not a gradient transformation
              found     the function sgd
              expected  an object with init and update, such as Optax optimizers return
              do        for example tx=optax.sgd(1e-3)
        """,
    ),
    "a number for a transformation": Row(
        "plait.Optimizer(model, 1e-3, wrt=plait.Param)",
        ArgumentTypeError,
        fix="tx=optax.adam(1e-3)",
        cure="plait.Optimizer(model, $, wrt=plait.Param)",
        setup=OPTIMIZER,
        text="""
            tx of Optimizer is not a gradient transformation
              found     a float
              expected  an object with init and update, such as Optax optimizers return
              do        for example tx=optax.adam(1e-3)
        """,
    ),
    "the model for a transformation": Row(
        "plait.Optimizer(model, model, wrt=plait.Param)",
        ArgumentTypeError,
        fix="tx=optax.adam(1e-3)",
        cure="plait.Optimizer(model, $, wrt=plait.Param)",
        setup=OPTIMIZER,
        text="""
            tx of Optimizer is not a gradient transformation
              found     a Sequential
              expected  an object with init and update, such as Optax optimizers return
              do        for example tx=optax.adam(1e-3)
        """,
    ),
    "parameters in no group": Row(
        "plait.Optimizer(model, {'**.bias': tx, 'layers[0].**': None}, wrt=plait.Param)",
        OptimizerError,
        fix="...: optax.adamw(1e-3)}",
        cure="plait.Optimizer(model, {'**.bias': tx, $, wrt=plait.Param)",
        setup=OPTIMIZER,
        text="""
            parameters are in no group of the optimizer
              at        layers[1].kernel
              found     the groups '**.bias', 'layers[0].**'
              expected  a group for each parameter that wrt selects
              do        add a last group for all others: {..., ...: optax.adamw(1e-3)}, or {..., ...:
                        None} to freeze them
        """,
    ),
    "a mask made of variables": Row(
        "plait.Optimizer(model, optax.adamw(0.1, mask=decayed(plait.state(model, plait.Param))), wrt=plait.Param)",
        OptimizerError,
        fix="plait.pure(plait.state(model, plait.Param))",
        cure="plait.Optimizer(model, optax.adamw(0.1, mask=decayed($)), wrt=plait.Param)",
        setup=OPTIMIZER + "decayed = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)\n",
        text="""
            a tree that the transformation was made with does not have the structure of the parameters
              at        layers[0].bias, layers[0].kernel, layers[1].bias, layers[1].kernel
              found     a tree of another structure, such as a mask made of variables
              expected  a function of the parameters, or a State of plain values by the paths of the parameters
              do        optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1,
                        params)); or make it from plait.pure(plait.state(model, plait.Param))
        """,
    ),
    "an update without gradients": Row(
        "optimizer.update(grads)",
        ArgumentTypeError,
        fix="optimizer.update(model, grads)",
        setup=OPTIMIZER,
        text="""
            Optimizer.update was called without grads
              found     one argument
              expected  update(model, grads)
              do        pass both: optimizer.update(model, grads); plait.ModelAndOptimizer(model, tx)
                        stores the model and takes update(grads)
        """,
    ),
    "the model of an optimizer without one": Row(
        "optimizer.model",
        OptimizerAttributeError,
        fix="plait.ModelAndOptimizer(model, tx)",
        cure="$.model",
        setup=OPTIMIZER,
        text="""
            Optimizer has no attribute 'model': it does not store the model
              found     an access to .model
              expected  the model as the first argument of update(model, grads)
              do        keep your own reference to the model, or use plait.ModelAndOptimizer(model, tx),
                        which has .model
        """,
    ),
    "the model for its gradients": Row(
        "optimizer.update(model, model)",
        OptimizerError,
        fix="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
        setup=OPTIMIZER,
        text="""
            update was given the model instead of gradients
              at        layers[0].bias, layers[0].kernel, layers[1].bias, layers[1].kernel
              found     update(a Sequential, a Sequential)
              expected  the model first, then a State of gradients with the same paths: update(model, grads)
              do        grads = plait.grad(loss)(model, x); optimizer.update(model, grads)
        """,
    ),
    "its variables for gradients": Row(
        "optimizer.update(model, plait.variables(model))",
        OptimizerError,
        fix="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
        setup=OPTIMIZER,
        text="""
            update was given the model instead of gradients
              at        layers[0].bias, layers[0].kernel, layers[1].bias, layers[1].kernel
              found     update(a Sequential, a State)
              expected  the model first, then a State of gradients with the same paths: update(model, grads)
              do        grads = plait.grad(loss)(model, x); optimizer.update(model, grads)
        """,
    ),
    "gradients before the model": Row(
        "optimizer.update(grads, model)",
        OptimizerError,
        fix="grads = plait.grad(loss)(model, x); optimizer.update(model, grads)",
        setup=OPTIMIZER,
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
        fix="grads = plait.grad(loss, argnums=plait.DiffState(0, plait.Param))(model, x)",
        cure="$; optimizer.update(model, grads)",
        setup=OPTIMIZER,
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
        fix="grads = plait.grad(loss, argnums=plait.DiffState(0, plait.Param))(model, x)",
        cure="$; optimizer.update(model, grads)",
        setup=OPTIMIZER,
        text="""
            the paths of the gradients and of the updated variables differ
              at        layers[1].bias, layers[0].scale
              found     no gradient for layers[1].bias; a gradient for layers[0].scale, which the model does not have
              expected  one gradient for each of the 4 variables that wrt=plait.Param selects
              do        differentiate with respect to the same variables: grads = plait.grad(loss,
                        argnums=plait.DiffState(0, plait.Param))(model, x)
        """,
    ),
    "a gradient of another shape": Row(
        "grads['layers'][0]['bias'] = jnp.ones((1, 3)); optimizer.update(model, grads)",
        OptimizerError,
        cure="optimizer.update(model, grads)",
        setup=OPTIMIZER,
        text="""
            a gradient does not have the shape of its variable
              at        layers[0].bias
              found     a gradient of shape (1, 3) at layers[0].bias
              expected  shape (3,)
              do        differentiate the same model that is updated; sum or average gradients over added axes first
        """,
    ),
    "a layer more than the optimizer has": Row(
        LAYER_MORE + "optimizer.update(model, plait.grad(loss)(model, x))",
        OptimizerError,
        fix="plait.Optimizer(model, tx, wrt=plait.Param)",
        cure=LAYER_MORE + "$.update(model, plait.grad(loss)(model, x))",
        setup=OPTIMIZER,
        text="""
            the variables of the model do not match the optimizer's state
              at        layers[2].bias, layers[2].kernel
              found     2 new, and 4 that match
              expected  the variables that the model had when the optimizer was created
              do        create the optimizer after the model is complete: plait.Optimizer(model, tx, wrt=plait.Param)
        """,
    ),
    "other layers than the optimizer has": Row(
        OTHER_LAYERS + "optimizer.update(model, plait.grad(loss)(model, x))",
        OptimizerError,
        fix="plait.Optimizer(model, tx, wrt=plait.Param)",
        cure=OTHER_LAYERS + "$.update(model, plait.grad(loss)(model, x))",
        setup=OPTIMIZER,
        text="""
            the variables of the model do not match the optimizer's state
              at        layers[1].layers[0].bias, layers[1].layers[0].kernel, layers[0].bias,
                        layers[0].kernel, [0].mu.layers[1].bias, [0].mu.layers[1].kernel,
                        [0].nu.layers[1].bias, [0].nu.layers[1].kernel
              found     2 new, 2 with a different shape, 4 that the model lacks, and 0 that match
              expected  the variables that the model had when the optimizer was created
              do        create the optimizer after the model is complete: plait.Optimizer(model, tx, wrt=plait.Param)
        """,
    ),
    "no learning rate": Row(
        "plait.learning_rate(optimizer)",
        OptimizerError,
        fix="optax.inject_hyperparams(optax.adam)(learning_rate=schedule)",
        cure="plait.learning_rate(plait.Optimizer(model, $, wrt=plait.Param))",
        setup=OPTIMIZER + "schedule = optax.linear_schedule(1.0, 0.5, 2)\n",
        text="""
            the state of the optimizer has no learning rate, or several
              found     a transformation that stores none
              expected  one learning rate, stored by optax.inject_hyperparams
              do        wrap the optimizer: optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
        """,
    ),
    "two learning rates": Row(
        "plait.learning_rate(optimizer)",
        OptimizerError,
        fix="plait.learning_rate(optimizer, 'opt_state[0].hyperparams.learning_rate')",
        setup=TWO_RATES,
        text="""
            the state of the optimizer has no learning rate, or several
              found     2: opt_state[0].hyperparams.learning_rate, opt_state[1].hyperparams.learning_rate
              expected  one learning rate, stored by optax.inject_hyperparams
              do        choose one of them: plait.learning_rate(optimizer, 'opt_state[0].hyperparams.learning_rate')
        """,
    ),
    "no such learning rate": Row(
        "plait.learning_rate(optimizer, 'opt_state.x')",
        OptimizerError,
        fix="plait.learning_rate(optimizer, 'opt_state[0].hyperparams.learning_rate')",
        setup=TWO_RATES,
        text="""
            the state of the optimizer has no learning rate, or several
              found     2: opt_state[0].hyperparams.learning_rate, opt_state[1].hyperparams.learning_rate
              expected  one at opt_state.x
              do        choose one of them: plait.learning_rate(optimizer, 'opt_state[0].hyperparams.learning_rate')
        """,
    ),
    # train states
    "a number for the transformation of a train state": Row(
        "Training.create(graphdef, params=params, tx=1e-3)",
        ArgumentTypeError,
        fix="tx=optax.adam(1e-3)",
        cure="Training.create(graphdef, params=params, $)",
        setup=STATE,
        text="""
            tx of Training is not a gradient transformation
              found     a float
              expected  an object with init and update, such as Optax optimizers return
              do        for example tx=optax.adam(1e-3)
        """,
    ),
    "a field that is not there": Row(
        "state.apply('params', 'stats')",
        OptimizerAttributeError,
        fix="stats: plait.State",
        cure="class WithStats(Training):\n    $\nWithStats.create(graphdef, params=params, tx=tx, stats=params)",
        setup=STATE,
        text="""
            Training has no field 'stats'
              found     the fields ['graphdef', 'params', 'opt_state', 'step', 'tx']
              expected  the name of a field that holds a State
              do        declare it in a subclass of TrainState (stats: plait.State), and pass it to create(stats=...)
        """,
    ),
    "a gradient too few for a train state": Row(
        "del grads['bias']; state.apply_gradients(grads)",
        OptimizerError,
        fix="jax.grad(loss)(state.params)",
        cure="state.apply_gradients($)",
        setup=STATE,
        text="""
            the gradients do not have the structure of the parameters
              at        bias
              found     no gradient for bias
              expected  a State with the 2 paths of params
              do        differentiate with respect to params: jax.grad(loss)(state.params)
        """,
    ),
    "a gradient too many for a train state": Row(
        "grads['scale'] = x; state.apply_gradients(grads)",
        OptimizerError,
        fix="jax.grad(loss)(state.params)",
        cure="state.apply_gradients($)",
        setup=STATE,
        text="""
            the gradients do not have the structure of the parameters
              at        scale
              found     a gradient for scale, which params does not have
              expected  a State with the 2 paths of params
              do        differentiate with respect to params: jax.grad(loss)(state.params)
        """,
    ),
    "gradients of another type for a train state": Row(
        "state.apply_gradients(grads)",
        OptimizerError,
        fix="jax.grad(loss)(state.params)",
        cure="state.apply_gradients($)",
        setup=STATE,
        text="""
            the gradients do not have the structure of the parameters
              at        bias, kernel
              found     the same paths, but leaves of different types or metadata
              expected  a State with the 2 paths of params
              do        differentiate with respect to params: jax.grad(loss)(state.params)
        """,
    ),
    # averages, loss scales
    "an average of an array": Row(
        "EMA({'a': [x], 'b': plait.Param(x)}, decay)",
        ArgumentTypeError,
        fix="EMA(model, decay, only=plait.Param)",
        setup="model, decay, EMA = {'a': [x], 'b': plait.Param(x)}, 0.5, plait.EMA",
        text="""
            EMA averages only variables
              at        a[0]
              found     a jax.Array
              expected  a variable
              do        select the variables: EMA(model, decay, only=plait.Param)
        """,
    ),
    "values of another shape than the averages": Row(
        "ema.update(plait.Linear(4, 3, rngs=rngs))",
        ArgumentError,
        cure="ema.update(plait.Linear(2, 3, rngs=rngs))",
        setup=EMA,
        text="""
            the values do not match the averages
              at        kernel
              found     a value of shape (4, 3)
              expected  a value of shape (2, 3)
              do        update with the model that the EMA was created from, or create a new EMA
        """,
    ),
    "averages without new values": Row(
        "ema.update(plait.Linear(2, 3, use_bias=False, rngs=rngs))",
        ArgumentError,
        cure="ema.update(plait.Linear(2, 3, rngs=rngs))",
        setup=EMA,
        text="""
            the values do not match the averages
              at        bias
              found     nothing
              expected  a value of shape (3,)
              do        update with the model that the EMA was created from, or create a new EMA
        """,
    ),
    "averages for another model": Row(
        "ema.apply_to(plait.Dict(other=plait.Param(x)))",
        ArgumentError,
        cure="ema.apply_to(plait.Linear(2, 3, rngs=rngs))",
        setup=EMA,
        text="""
            the model lacks some of the averaged variables
              at        bias, kernel
              found     no variable
              expected  a model with the structure that the EMA was created from
              do        apply the averages to the model that the EMA was created from
        """,
    ),
    "a loss scale that cannot grow": Row(
        "plait.DynamicLossScale(8.0, growth_interval=5, factor=1.0, minimum=2.0, maximum=64.0)",
        ArgumentError,
        cure="plait.DynamicLossScale()",
        text="""
            these arguments of a loss scale are invalid
              found     initial=8.0, growth_interval=5, factor=1.0, minimum=2.0, maximum=64.0
              expected  factor > 1, growth_interval >= 1, and 0 < minimum <= initial <= maximum
              do        omit them for the defaults
        """,
    ),
}
