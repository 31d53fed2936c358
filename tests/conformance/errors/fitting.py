"""Mistakes with ``fit``, and with the batches and loggers that it takes."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointWarning,
    DataError,
    DonatedArrayError,
    LoggerWarning,
    MissingDependencyError,
    NonFiniteError,
)

from .rows import Row

TRAINING = """
from plait.training import *
make_iterator = lambda epoch: iter([1.0])
"""
MAKER = """
class Maker:
    def __call__(self):
        return iter([1.0])
make_iterator = Maker()
"""
FIT = """
from plait.training import Batches, CallbackInfo, fit
p = plait.Param(jnp.float32(9.0))
def run(step=lambda p, x: 1.0, data=(1.0,), steps=1, **options):
    return fit(step, {"p": p}, data, **{"steps": steps, "show": False, **options})
"""
SAVED = FIT + "import tempfile\nsaved = plait.checkpoint.Checkpoints(tempfile.mkdtemp())\n"
BROKEN = """
class Broken:
    def write(self, step, values):
        raise OSError("the disk is full")
    def close(self):
        pass
"""
PROFILED = """
from unittest import mock
def full():
    raise OSError("the disk is full")
def profiled():
    with mock.patch.object(jax.profiler, "start_trace"), mock.patch.object(jax.profiler, "stop_trace", full):
        return run(profile=(range(1, 9), "profile"))
"""
# It has a position, but is no iterator.
POSITIONED = """
class Positioned:
    def __iter__(self):
        return iter(Batches([1.0]))
    def get_state(self):
        return {}
    def set_state(self, state):
        pass
data = Positioned()
"""
DONATES = """
model = p
adapt = plait.jit(lambda model: model.set_value(model[...] + 1), donate=True)
def adapted(model):
    adapt(model)
    if model is p:
        raise OSError("the evaluation is wrong")
    return {}
"""
DONATING = """
scaled = jax.jit(lambda scale: 2 * scale, donate_argnums=0)
model = plait.Dict(scale=plait.Param(jnp.float32(9.0)))
def returning(scale):
    model.scale[...] = scaled(model.scale[...])
    return {"loss": 1.0, "scale": scale}
"""
NOT_FINITE = """
@plait.jit
def step(p, x):
    loss, grad = plait.value_and_grad(lambda p: jnp.sqrt(p[...] * x))(p)
    p[...] -= grad
    return loss
"""
ACCUMULATED = """
from plait.training import accumulated_value_and_grad
def totals(model, batch):
    return (model(batch["x"]) * batch["weight"]).sum(), batch["weight"].sum()
halved = accumulated_value_and_grad(totals, parts=2)
model, batch = plait.Linear(2, 2, rngs=rngs), {"x": jnp.ones((8, 2)), "weight": jnp.ones((8, 1))}
"""
DEVICES = """
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
def on_devices(parts):
    with jax.set_mesh(mesh):
        batches = jax.device_put(batch, jax.NamedSharding(mesh, P("data")))
        return plait.jit(accumulated_value_and_grad(totals, parts=parts))(model, batches)
"""

ROWS = {
    # fit
    "an object that a callback replaces": Row(
        "run(callbacks=[lambda info: info.objects.update(p=new)], log_every=1)",
        ArgumentError,
        fix="plait.update(info.objects['p'], plait.state(new))",
        setup=FIT + "new = plait.Param(jnp.float32(1.0))\ninfo = CallbackInfo(1, {}, {'p': p}, print)",
        text="""
            a callback has replaced an object of fit
              at        objects['p']
              found     another Param
              expected  the object that fit was called with, which the step goes on with
              do        change it in place: plait.update(info.objects['p'], plait.state(new))
        """,
    ),
    "nothing to evaluate": Row(
        "run(evaluate_every=2)",
        ArgumentError,
        fix="evaluate=lambda: {'loss': loss(model, x)}",
        cure="run(evaluate_every=2, $)",
        setup=FIT + "loss = lambda model, x: model(x).sum()",
        text="""
            there is nothing to evaluate
              at        evaluate_every
              found     evaluate_every=2 without evaluate
              expected  both, or neither
              do        pass `evaluate=lambda: {'loss': loss(model, x)}`, or leave out evaluate_every
        """,
    ),
    "objects in another order than the parameters": Row(
        "fit(lambda b, model, batch: 1.0, {'a': p, 'b': p}, [1.0], steps=1)",
        ArgumentError,
        cure="fit(lambda a, b, batch: 1.0, {'a': p, 'b': p}, [1.0], steps=1)",
        setup=FIT,
        text="""
            a parameter of the step would get another object than the one of its name
              at        step(b, model, …)
              found     objects in the order a, b: b would be a
              expected  parameters with the names of the objects, or objects in the order of the parameters
              do        name the parameters of the step as the objects: a, b
        """,
    ),
    "an object called data": Row(
        "fit(lambda data, x: 1.0, {'data': p}, [1.0], steps=1)",
        ArgumentError,
        fix="objects={'model': model, 'dataset': ...}",
        cure="$; fit(lambda dataset, x: 1.0, objects={'dataset': p}, data=[1.0], steps=1)",
        setup=FIT,
        text="""
            an object has the name under which checkpoints store the position in the data
              at        objects['data']
              found     a Param
              expected  another name
              do        rename it: objects={'model': model, 'dataset': ...}
        """,
    ),
    "data with a position that is no iterator": Row(
        "run(data=data)",
        ArgumentTypeError,
        fix="iter(data)",
        cure="run(data=$)",
        setup=FIT + POSITIONED,
        text="""
            the data has a position, but no next batch
              at        data
              found     a Positioned with get_state and set_state, but without __next__
              expected  an iterator, or an iterable without a position
              do        pass the iterator itself, which has get_state and set_state: iter(data)
        """,
    ),
    "data without a position": Row(
        "run(data=make_iterator(0), checkpoints=saved)",
        ArgumentTypeError,
        fix="Batches(lambda epoch: make_iterator(epoch))",
        cure="run(data=$, checkpoints=saved)",
        setup=SAVED + "make_iterator = lambda epoch: iter([1.0])",
        text="""
            a checkpoint cannot save the position of this data iterator
              at        data
              found     a list_iterator without get_state and set_state
              expected  an iterator with both, or an iterable that can be iterated over again
              do        pass the iterable itself, or Batches(lambda epoch: make_iterator(epoch))
        """,
    ),
    "an evaluation that fails after it has donated": Row(
        "run(evaluate=lambda: adapted(p), checkpoints=saved)",
        CheckpointWarning,
        fix="plait.clone(model, arrays=True)",
        cure="run(evaluate=lambda: adapted($), checkpoints=saved)",
        setup=SAVED + DONATES,
        text="""
            the state after step 1 is not saved: the evaluation that failed has donated a part of it
              at        p
              found     deleted arrays, and what the evaluation has made of them
              expected  arrays to go back to
              do        evaluate plait.clone(model, arrays=True), or without donation; resume from the newest
            checkpoint
        """,
    ),
    "data that does not arrive": Row(
        "run(data=iter(never.wait, None), data_timeout=0.05)",
        DataError,
        cure="never.set(); run(data=iter(never.wait, None), data_timeout=5)",
        setup=FIT + "import threading; never = threading.Event()",
        text="""
            no batch arrived in time
              at        data
              found     nothing after 0.05 s
              expected  a batch
              do        check what the iterator is waiting for, or increase data_timeout; the state is saved
        """,
    ),
    "a step that returns an array": Row(
        "run(lambda p, x: {'accuracy': jnp.ones((2, 3))})",
        ArgumentTypeError,
        cure="run(lambda p, x: 1.0)",
        setup=FIT,
        text="""
            a step must return a number, or a dict of numbers
              at        accuracy
              found     an array of shape (2, 3)
              expected  a scalar
              do        return the loss alone, or {'loss': loss, 'accuracy': accuracy}
        """,
    ),
    "a step that returns an array which it donates": Row(
        "run(lambda p, x: returning(model.scale[...]))",
        DonatedArrayError,
        fix="jnp.copy(model.scale[...])",
        cure="run(lambda p, x: returning($))",
        setup=FIT + DONATING,
        text="""
            a step returned an array that it, or a later step, has donated
              at        scale
              found     a deleted array, which may be part of the model
              expected  a number that is still there when it is logged, up to two steps later
              do        return a copy: {'scale': jnp.copy(model.scale[...])}
        """,
    ),
    "a step that returns a word": Row(
        "run(lambda p, x: 'text')",
        ArgumentTypeError,
        cure="run(lambda p, x: 1.0)",
        setup=FIT,
        text="""
            a step must return a number, or a dict of numbers
              at        loss
              found     a str
              expected  a scalar
              do        return the loss alone, or {'loss': loss, 'accuracy': accuracy}
        """,
    ),
    "a metric called step": Row(
        "run(lambda p, x: {'loss': 1.0, 'step': 7})",
        ArgumentError,
        cure="run(lambda p, x: {'loss': 1.0, 'inner_step': 7})",
        setup=FIT,
        text="""
            a metric has the name under which loggers write the step
              at        step
              found     7.0
              expected  another name
              do        rename the metric: return {'loss': loss, 'inner_step': ...}
        """,
    ),
    "a loss that is not finite": Row(
        "run(lambda p, x: {'a': 1.0, 'kl_loss': 0.5, 'l2_loss': np.inf}, steps=2)",
        NonFiniteError,
        fix="plait.debug_nans()",
        cure="with $: run()",
        setup=FIT,
        text="""
            the l2_loss is inf at step 2
              at        the loss
              found     finite variables
              expected  finite numbers
              do        resume from the newest checkpoint in a new process, under plait.debug_nans(),
                        which names the layer that made the first one; a smaller learning rate or
                        gradient clipping (optax.clip_by_global_norm) may help
        """,
    ),
    "variables that are not finite": Row(
        "p[...] = jnp.nan; run(lambda p, x: p[...])",
        NonFiniteError,
        fix="plait.debug_nans()",
        cure="with $: run(lambda p, x: p[...])",
        setup=FIT,
        text="""
            the loss is nan at step 1
              at        p
              found     NaN or infinities in these variables
              expected  finite numbers
              do        resume from the newest checkpoint in a new process, under plait.debug_nans(),
                        which names the layer that made the first one; a smaller learning rate or
                        gradient clipping (optax.clip_by_global_norm) may help
        """,
    ),
    "parameters that became NaN": Row(
        "run(step, [np.float32(4), np.float32(0)], checkpoints=saved, save_every=1, steps=3)",
        NonFiniteError,
        fix="plait.debug_nans()",
        cure="with $: run(step, [np.float32(4)])",
        setup=SAVED + NOT_FINITE,
        text="""
            parameters are NaN after step 2
              at        p
              found     NaN or infinities in these variables
              expected  finite numbers
              do        resume from the newest checkpoint in a new process, under plait.debug_nans(),
                        which names the layer that made the first one; a smaller learning rate or
                        gradient clipping (optax.clip_by_global_norm) may help
        """,
    ),
    # loggers
    "a log in a file of something else": Row(
        "JsonLines('log').write(1, {'loss': 2.0})",
        ArgumentError,
        cure="JsonLines('other').write(1, {'loss': 2.0})",
        setup=TRAINING + "open('log', 'w').write('no JSON\\n')",
        text="""
            the path of the log has a file with other contents
              at        log
              found     the line b'no JSON\\n'
              expected  lines of JSON with a step, or no file
              do        choose another path for the log
        """,
    ),
    "a log without tensorboardX": Row(
        "with patch.dict(sys.modules, tensorboardX=None):\n    TensorBoard('log')",
        MissingDependencyError,
        cure="TensorBoard('log').close()",
        setup=TRAINING + "import sys\nfrom unittest.mock import patch",
        text="""
            TensorBoard's files are written by tensorboardX, which is not installed
              found     no module tensorboardX
              expected  the package tensorboardX
              do        pip install 'plait[tensorboard]'
        """,
    ),
    "a logger that fails": Row(
        "run(loggers=[Broken()])",
        LoggerWarning,
        cure="run()",
        setup=FIT + BROKEN,
        text="""
            Broken could not write step 1, and is disabled: OSError: the disk is full
        """,
    ),
    "a profile that cannot be written as the run ends": Row(
        "profiled()",
        LoggerWarning,
        cure="run()",
        setup=FIT + PROFILED,
        text="""
            the profile could not be written: OSError: the disk is full
        """,
    ),
    # steps, parts, batches
    "no steps": Row(
        "run(steps=0)",
        ArgumentError,
        fix="steps=1_000",
        cure="run($)",
        setup=FIT,
        text="""
            this is not a number of steps
              at        steps
              found     0
              expected  an integer of 1 or more
              do        for example steps=1_000
        """,
    ),
    "half a step between saves": Row(
        "run(save_every=0.5)",
        ArgumentError,
        fix="save_every=1_000",
        cure="run($)",
        setup=FIT,
        text="""
            this is not a number of steps
              at        save_every
              found     0.5
              expected  an integer of 1 or more
              do        for example save_every=1_000
        """,
    ),
    "half a part": Row(
        "accumulated_value_and_grad(totals, parts=0.5)",
        ArgumentError,
        fix="parts=4",
        cure="accumulated_value_and_grad(totals, $)(model, batch)",
        setup=ACCUMULATED,
        text="""
            this is not a number of parts
              at        parts
              found     0.5
              expected  an integer of 1 or more
              do        for example parts=4
        """,
    ),
    "a batch of seven in two parts": Row(
        "batch['weight'] = jnp.ones((7, 1)); halved(model, batch)",
        ArgumentError,
        cure="batch['weight'] = jnp.ones((8, 1)).at[7].set(0); halved(model, batch)",
        setup=ACCUMULATED,
        text="""
            the batch cannot be split into parts of equal size
              at        batch['weight']
              found     an array of shape (7, 1)
              expected  a first axis that is a multiple of 2
              do        pad the batch to a multiple of 2, with weight 0 for the padding, or choose other parts
        """,
    ),
    "a number for all examples of a batch": Row(
        "batch['scale'] = jnp.ones(()); halved(model, batch)",
        ArgumentError,
        cure="batch['scale'] = jnp.ones(8); halved(model, batch)",
        setup=ACCUMULATED,
        text="""
            the batch cannot be split into parts of equal size
              at        batch['scale']
              found     an array of shape ()
              expected  a first axis that is a multiple of 2
              do        pad the batch to a multiple of 2, with weight 0 for the padding, or choose other parts
        """,
    ),
    "parts too small for the devices": Row(
        "on_devices(4)",
        ArgumentError,
        cure="on_devices(2)",
        setup=ACCUMULATED + DEVICES,
        text="""
            the batch cannot be split into parts of equal size
              at        batch['weight']
              found     an array of shape (8, 1)
              expected  a first axis that is a multiple of 16, 4 parts on 4 devices
              do        pad the batch to a multiple of 16, with weight 0 for the padding, or choose other parts
        """,
    ),
    "batches that can be iterated over once": Row(
        "Batches(iter([1]))",
        ArgumentTypeError,
        fix="Batches(lambda epoch: make_iterator(epoch))",
        setup=TRAINING,
        text="""
            the source of batches must be iterable again for each epoch
              found     list_iterator, which can be iterated over once
              expected  a list or dataset, or a function of the epoch
              do        pass a function that makes the iterator: Batches(lambda epoch: make_iterator(epoch))
        """,
    ),
    "a number for batches": Row(
        "Batches(3)",
        ArgumentTypeError,
        fix="Batches(lambda epoch: make_iterator(epoch))",
        setup=TRAINING,
        text="""
            the source of batches must be iterable again for each epoch
              found     int
              expected  a list or dataset, or a function of the epoch
              do        pass a function that makes the iterator: Batches(lambda epoch: make_iterator(epoch))
        """,
    ),
    "batches of no epoch": Row(
        "next(Batches(make_iterator))",
        ArgumentTypeError,
        fix="Batches(lambda epoch: make_iterator())",
        cure="next($)",
        setup=TRAINING + "def make_iterator():\n    return iter([1])",
        text="""
            the source of batches does not take the number of an epoch
              at        make_iterator
              found     too many positional arguments
              expected  a function of the epoch, from 0
              do        Batches(lambda epoch: make_iterator())
        """,
    ),
    "batches of no epoch, from a callable": Row(
        "next(Batches(Maker()))",
        ArgumentTypeError,
        fix="Batches(lambda epoch: make_iterator())",
        cure="next($)",
        setup=TRAINING + MAKER,
        text="""
            the source of batches does not take the number of an epoch
              at        Maker
              found     too many positional arguments
              expected  a function of the epoch, from 0
              do        Batches(lambda epoch: make_iterator())
        """,
    ),
    "fewer batches than before": Row(
        "batches = Batches([1, 2, 3]); batches.set_state({'epoch': 2, 'index': 4}); next(batches)",
        ArgumentError,
        cure="batches = Batches([1] * 5); batches.set_state({'epoch': 2, 'index': 4}); next(batches)",
        setup=TRAINING,
        text="""
            the source has fewer batches than when its position was saved
              at        epoch 2
              found     3 batches
              expected  at least 4, as before
              do        resume with the same data and the same batch size
        """,
    ),
    "an epoch without batches": Row(
        "batches = Batches(lambda epoch: [1][epoch:]); next(batches), next(batches)",
        ArgumentError,
        fix="Batches(lambda epoch: ...)",
        cure="$; batches = Batches(lambda epoch: [1]); next(batches), next(batches)",
        setup=TRAINING,
        text="""
            an epoch has no batches
              at        epoch 1
              found     an empty source
              expected  at least one batch in each epoch
              do        check the data, or pass a function that makes a new iterator: Batches(lambda epoch: ...)
        """,
    ),
    "nothing is prefetched": Row(
        "prefetch(Batches([x]), size=0)",
        ArgumentError,
        cure="prefetch(Batches([x]))",
        setup=TRAINING,
        text="""
            nothing is prefetched
              found     size=0
              expected  1 or more
              do        omit size
        """,
    ),
}
