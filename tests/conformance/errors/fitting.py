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
FIT = """
from plait.training import Batches, CallbackInfo, EarlyStop, fit
p = plait.Param(jnp.float32(9.0))
def run(step=lambda p, x: 1.0, data=(1.0,), steps=1, **options):
    return fit(step, {"p": p}, data, **{"steps": steps, "show": False, **options})
"""
SAVED = FIT + "import tempfile\nsaved = plait.checkpoint.Checkpoints(tempfile.mkdtemp())\n"
ACCUMULATED = """
from plait.training import accumulated_value_and_grad
def totals(model, batch):
    return (model(batch["x"]) * batch["weight"]).sum(), batch["weight"].sum()
halved = accumulated_value_and_grad(totals, parts=2)
model, batch = plait.Linear(2, 2, rngs=rngs), {"x": jnp.ones((8, 2)), "weight": jnp.ones((8, 1))}
"""

ROWS = {
    "an object that a callback replaces": Row("run(callbacks=[lambda info: info.objects.update(p=new)], log_every=1)",
        ArgumentError, (r"at +objects\['p'\]", "found +another Param"),
        setup=FIT + "new = plait.Param(jnp.float32(1.0))"),
    "nothing to evaluate": Row(
        "run(evaluate_every=2)",
        ArgumentError,
        setup=FIT + "loss = lambda model, x: model(x).sum()",
        fix="evaluate=lambda: {'loss': loss(model, x)}",
        cure="run(evaluate_every=2, $)",
        text="""
            there is nothing to evaluate
              at        evaluate_every
              found     evaluate_every=2 without evaluate
              expected  both, or neither
              do        pass `evaluate=lambda: {'loss': loss(model, x)}`, or leave out evaluate_every
        """,
    ),
    "an evaluation at the end that shall end the run early": Row(
        "run(evaluate=lambda: {'loss': 1.0}, callbacks=EarlyStop('eval/loss', patience=3))", ArgumentError,
        (r"at +callbacks\[0\]", "found +EarlyStop\\('eval/loss', ...\\) without evaluate_every"), setup=FIT),
    "objects in another order than the parameters": Row(
        "fit(lambda b, model, batch: 1.0, {'a': p, 'b': p}, [1.0], steps=1)", ArgumentError,
        (r"at +step\(b, model, …\)", "found +objects in the order a, b: b would be a"), setup=FIT),
    "an object called data": Row("fit(lambda data, x: 1.0, {'data': p}, [1.0], steps=1)", ArgumentError,
        (r"at +objects\['data'\]", "found +a Param"), setup=FIT),
    "data with a position that is no iterator": Row("run(data=data)", ArgumentTypeError,
        ("at +data", "found +a Positioned with get_state and set_state, but without __next__"),
        setup=FIT + ("class Positioned:\n"
        "    def __iter__(self):\n"
        "        return iter(Batches([1.0]))\n"
        "    def get_state(self):\n"
        "        return {}\n"
        "    def set_state(self, state):\n"
        "        pass\n"
        "data = Positioned()")),
    "data without a position": Row(
        "run(data=make_iterator(0), checkpoints=saved)",
        ArgumentTypeError,
        setup=SAVED + "make_iterator = lambda epoch: iter([1.0])",
        fix="Batches(lambda epoch: make_iterator(epoch))",
        cure="run(data=$, checkpoints=saved)",
        text="""
            a checkpoint cannot save the position of this data iterator
              at        data
              found     a list_iterator without get_state and set_state
              expected  an iterator with both, or an iterable that can be iterated over again
              do        pass the iterable itself, or Batches(lambda epoch: make_iterator(epoch))
        """,
    ),
    "an evaluation that fails after it has donated": Row("run(evaluate=lambda: adapted(p), checkpoints=saved)",
        CheckpointWarning, ("at +p", "found +deleted arrays, and what the evaluation has made of them"),
        setup=SAVED + ("adapt = plait.jit(lambda model: model.set_value(model[...] + 1), donate=True)\n"
        "def adapted(model):\n"
        "    adapt(model)\n"
        "    if model is p:\n"
        '        raise OSError("the evaluation is wrong")')),
    "data that does not arrive": Row("run(data=iter(never.wait, None), data_timeout=0.05)", DataError,
        ("at +data", r"found +nothing after 0\.05 s"), setup=FIT + "import threading; never = threading.Event()"),
    "a step that returns an array": Row("run(lambda p, x: {'accuracy': jnp.ones((2, 3))})", ArgumentTypeError,
        ("at +accuracy", r"found +an array of shape \(2, 3\)"), setup=FIT),
    "a step that returns an array which it donates": Row(
        "run(lambda p, x: returning(model.scale[...]))",
        DonatedArrayError,
        setup=FIT + ("\n"
        "scaled = jax.jit(lambda scale: 2 * scale, donate_argnums=0)\n"
        "model = plait.Dict(scale=plait.Param(jnp.float32(9.0)))\n"
        "def returning(scale):\n"
        "    model.scale[...] = scaled(model.scale[...])\n"
        '    return {"loss": 1.0, "scale": scale}\n'),
        fix="jnp.copy(model.scale[...])",
        cure="run(lambda p, x: returning($))",
        text="""
            a step returned an array that it, or a later step, has donated
              at        scale
              found     a deleted array, which may be part of the model
              expected  a number that is still there when it is logged, up to two steps later
              do        return a copy: {'scale': jnp.copy(model.scale[...])}
        """,
    ),
    "a step that returns a word": Row("run(lambda p, x: 'text')", ArgumentTypeError,
        ("at +the result", "found +a str: 'text'"), setup=FIT),
    "a metric that nothing returns": Row("run(callbacks=EarlyStop('lss', patience=1), steps=9)", ArgumentError,
        (r"at +callbacks\[0\]", "found +'lss'", "expected +one of 'loss'"), setup=FIT),
    "a run without an end": Row("run(steps=None)", ArgumentError, ("at +steps", "found +neither steps nor epochs"),
        setup=FIT),
    "epochs of an iterator": Row("run(data=iter([1.0]), epochs=2)", ArgumentTypeError,
        ("at +data", "found +epochs, and a list_iterator"), setup=FIT),
    "a function as a logger": Row("run(loggers=print)", ArgumentTypeError,
        (r"at +loggers\[0\]", "found +<built-in function print>"), setup=FIT),
    "a metric called step": Row("run(lambda p, x: {'loss': 1.0, 'step': 7})", ArgumentError,
        ("at +step", r"found +7\.0"), setup=FIT),
    "a loss that is not finite": Row(
        "run(lambda p, x: {'a': 1.0, 'kl_loss': 0.5, 'l2_loss': np.inf}, steps=2)",
        NonFiniteError,
        setup=FIT,
        fix="plait.debug_nans()",
        cure="with $: run()",
        text="""
            the l2_loss is inf at step 2
              at        the loss
              found     finite variables
              expected  finite numbers
              do        resume from the newest checkpoint in a new process, under plait.debug_nans(), which names the
                        layer that made the first one; a smaller learning rate or gradient clipping
                        (optax.clip_by_global_norm) may help
        """,
    ),
    "variables that are not finite": Row("p[...] = jnp.nan; run(lambda p, x: p[...])", NonFiniteError,
        ("at +p", "found +NaN or infinities in these variables"), setup=FIT),
    "parameters that became NaN": Row(
        "run(step, [np.float32(4), np.float32(0)], checkpoints=saved, save_every=1, steps=3)",
        NonFiniteError,
        setup=SAVED + ("\n"
        "@plait.jit\n"
        "def step(p, x):\n"
        "    loss, grad = plait.value_and_grad(lambda p: jnp.sqrt(p[...] * x))(p)\n"
        "    p[...] -= grad\n"
        "    return loss\n"),
        fix="plait.debug_nans()",
        cure="with $: run(step, [np.float32(4)])",
        text="""
            parameters are NaN after step 2
              at        p
              found     NaN or infinities in these variables
              expected  finite numbers
              do        resume from the newest checkpoint in a new process, under plait.debug_nans(), which names the
                        layer that made the first one; a smaller learning rate or gradient clipping
                        (optax.clip_by_global_norm) may help
        """,
    ),
    "a log in a file of something else": Row("JsonLines('log').write(1, {'loss': 2.0})", ArgumentError,
        ("at +log", r"found +the line b'no JSON\\n'"), setup=TRAINING + "open('log', 'w').write('no JSON\\n')"),
    "a log in a text without a line": Row("JsonLines('text').write(1, {'loss': 2.0})", ArgumentError,
        ("at +text", r"found +the line b'no JSON'"), setup=TRAINING + "open('text', 'w').write('no JSON')"),
    "a folder in place of a log": Row("JsonLines('taken').write(1, {'loss': 2.0})", ArgumentError, "at +taken",
        setup=TRAINING + "import os; os.makedirs('taken', exist_ok=True)"),
    "a log without tensorboardX": Row("with patch.dict(sys.modules, tensorboardX=None):\n    TensorBoard('log')",
        MissingDependencyError, "found +tensorboardX is not installed",
        setup=TRAINING + "import sys\nfrom unittest.mock import patch"),
    "a logger that fails": Row("run(loggers=[Broken()])", LoggerWarning,
        "Broken could not write step 1, and is disabled: OSError: the",
        setup=FIT + 'class Broken:\n    def write(self, step, values):\n        raise OSError("the disk is full")'),
    "no steps": Row("run(steps=0)", ArgumentError, ("at +steps", "found +0"), setup=FIT),
    "half a step between saves": Row("run(save_every=0.5)", ArgumentError, ("at +save_every", r"found +0\.5"),
        setup=FIT),
    "half a part": Row("accumulated_value_and_grad(totals, parts=0.5)", ArgumentError, ("at +parts", r"found +0\.5"),
        setup=ACCUMULATED),
    "a batch of seven in two parts": Row(
        "batch['weight'] = jnp.ones((7, 1)); halved(model, batch)",
        ArgumentError,
        setup=ACCUMULATED,
        cure="batch['weight'] = jnp.ones((8, 1)).at[7].set(0); halved(model, batch)",
        text="""
            the batch cannot be split into parts of equal size
              at        batch['weight']
              found     an array of shape (7, 1)
              expected  a first axis that is a multiple of 2
              do        pad the batch to a multiple of 2, with weight 0 for the padding, or choose other parts
        """,
    ),
    "a number for all examples of a batch": Row("batch['scale'] = jnp.ones(()); halved(model, batch)", ArgumentError,
        (r"at +batch\['scale'\]", r"found +an array of shape \(\)"), setup=ACCUMULATED),
    "parts too small for the devices": Row("on_devices(4)", ArgumentError,
        (r"at +batch\['weight'\]", r"found +an array of shape \(8, 1\)"),
        setup=ACCUMULATED + ('mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))\n'
        "def on_devices(parts):\n"
        '        batches = jax.device_put(batch, jax.NamedSharding(mesh, P("data")))\n'
        "        return plait.jit(accumulated_value_and_grad(totals, parts=parts))(model, batches)")),
    "batches that can be iterated over once": Row("Batches(iter([1]))", ArgumentTypeError,
        "found +list_iterator, which can be iterated over once", setup=TRAINING),
    "a number for batches": Row("Batches(3)", ArgumentTypeError, "found +int", setup=TRAINING),
    "batches of no epoch": Row("next(Batches(make_iterator))", ArgumentTypeError,
        ("at +make_iterator", "found +too many positional arguments"),
        setup=TRAINING + "def make_iterator():\n    return iter([1])"),
    "batches of no epoch, from a callable": Row("next(Batches(Maker()))", ArgumentTypeError,
        ("at +Maker", "found +too many positional arguments"),
        setup=TRAINING + "class Maker:\n    def __call__(self):\n        return iter([1.0])"),
    "fewer batches than before": Row(
        "batches = Batches([1, 2, 3]); batches.set_state({'epoch': 2, 'index': 4}); next(batches)",
        ArgumentError,
        setup=TRAINING,
        cure="batches = Batches([1] * 5); batches.set_state({'epoch': 2, 'index': 4}); next(batches)",
        text="""
            the source has fewer batches than when its position was saved
              at        epoch 2
              found     3 batches
              expected  at least 4, as before
              do        resume with the same data and the same batch size
        """,
    ),
    "an epoch without batches": Row("batches = Batches(lambda epoch: [1][epoch:]); next(batches), next(batches)",
        ArgumentError, ("at +epoch 1", "found +an empty source"), setup=TRAINING),
    "nothing is prefetched": Row("prefetch(Batches([x]), size=0)", ArgumentError, "found +size=0", setup=TRAINING),
}  # fmt: skip
