"""Mistakes with modules, containers, attributes, marks, and registered types."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    AttributeStatusError,
    FilterError,
    FilterTypeError,
    GraphError,
    GraphTypeError,
    ShapeError,
    StaticValueError,
    TraceContextError,
)

from .rows import Row

REGISTER = """
class Pair:
    def __init__(self, *items):
        self.items = items

def register(*keys):
    jax.tree_util.register_pytree_with_keys(
        Pair, lambda p: (tuple(zip(map(jax.tree_util.DictKey, keys), p.items)), None), lambda _, items: Pair(*items)
    )
"""

ROWS = {
    "a value and options in a mark": Row(
        "plait.static(3, repr=False)",
        ArgumentTypeError,
        ("static\\(\\) takes a value or field options", "the value 3"),
        fix="plait.static(default=value)",
        cure="value = 3; $; plait.static(default=value, repr=False)",
    ),
    "data under a static mark": Row(
        "self.scales = plait.static(scales)",
        AttributeStatusError,
        (r"at +Two\.scales\[0\]", "a Param"),
        setup="self = model; scales = [plait.Param(x)]",
        fix="self.scales = plait.data(scales)",
    ),
    "a mark in a container": Row(
        "self.scales = [plait.data(1.0)]",
        AttributeStatusError,
        r"at +Two\.scales",
        setup="self = model; scales = [1.0]",
        fix="self.scales = plait.data(scales)",
    ),
    "a mark without a value": Row(
        "self.scale = plait.data()",
        ArgumentTypeError,
        (r"at +Two\.scale", r"found +plait\.data\(\)"),
        setup="self = model; value = 1.0",
        fix="self.scale = plait.data(value)",
    ),
    "__slots__": Row(
        "class Small(plait.Module):\n    __slots__ = ('w',)",
        ArgumentTypeError,
        "Small defines __slots__",
        "class Small(plait.Module):\n    w: int",
    ),
    "a reserved name": Row(
        "model._pytree__info = 3",
        ArgumentError,
        r"at +Two\._pytree__info",
        "model.info = 3",
    ),
    "a captured module gets an attribute": Row(
        "jax.jit(lambda x: setattr(model, 'scale', x) or x)(x)",
        TraceContextError,
        (r"at +(model|a Two)", "set the attribute 'scale'"),
        setup="f = lambda model, x: setattr(model, 'scale', x) or x",
        fix="plait.jit(f)(model, x)",
    ),
    "a key that is no attribute": Row(
        "model._pytree__graph_set_key(0, x)",
        ArgumentError,
        "Cannot set key 0 of a Two",
        "model._pytree__graph_set_key('a', x)",
    ),
    "a key that is not there": Row(
        "model._pytree__graph_pop_key('scale')",
        ArgumentError,
        "Cannot pop key 'scale' of a Two",
        "model._pytree__graph_pop_key('calls')",
    ),
    "an attribute that no module has": Row(
        "model.set_attributes(training=True)",
        ArgumentError,
        r"attributes: \['training'\]",
        fix="raise_if_not_found=False",
        cure="model.set_attributes(training=True, $)",
    ),
    "an index behind the end of a List": Row(
        "plait.update(plait.List([x]), {3: x})",
        GraphError,
        ("Cannot set key 3 of a List", "length 1"),
        setup="layers = plait.List([x]); layer = x",
        fix="layers.append(layer)",
    ),
    "an index behind the end of a List, set": Row(
        "plait.List([x])._pytree__graph_set_key(3, x)",
        GraphError,
        ("Cannot set key 3 of a List", "index below 2"),
        setup="layers = plait.List([x]); layer = x",
        fix="layers.append(layer)",
    ),
    "an index behind the end of a list, set": Row(
        "plait.graph.get_node_impl([x]).set_key([x], 3, x)",
        GraphError,
        "Cannot set key 3 of a list",
        setup="layers = [x]; layer = x",
        fix="layers.append(layer)",
    ),
    "a word as a filter": Row(
        "plait.state(model, 3)",
        FilterTypeError,
        "3 of type int",
        fix="plait.PathContains('kernel')",
        cure="plait.state(model, $); plait.state(model, plait.Not(plait.BatchStat))",
    ),
    "a filter behind the rest": Row(
        "plait.split(model, ..., plait.Param)",
        FilterError,
        r"at +filter 0 of 2",
        "plait.split(model, plait.Param, ...)",
    ),
    "a graph node registered twice": Row(
        "register(); register()",
        GraphError,
        "the graph node type Cell is already registered",
        "register()",
        setup="class Cell: pass\n"
        "def register():\n    plait.graph.register_graph_node_type(Cell, lambda c: ((), None), setattr, delattr, "
        "lambda m: Cell(), lambda c: None, lambda c, items: None)",
    ),
    "a pytree node registered twice": Row(
        "register(); register()",
        GraphError,
        "the pytree node type Cell is already registered",
        "register()",
        setup="class Cell: pass\n"
        "def register():\n"
        "    plait.graph.register_pytree_node_type(Cell, lambda c: ((), None), lambda pairs, m: Cell())",
    ),
    "two children with one key": Row(
        "register('a', 'a'); plait.state(Pair(x, x))",
        GraphError,
        r"the keys \['a', 'a'\]",
        "register('a', 'b'); plait.state(Pair(x, x))",
        setup=REGISTER,
    ),
    "a key without a hash": Row(
        "register([1], 'b'); plait.state(Pair(x, x))",
        GraphError,
        r"key \[1\] of type list",
        "register('a', 'b'); plait.state(Pair(x, x))",
        setup=REGISTER,
    ),
    "a word where a model belongs": Row(
        "plait.state('model')", GraphTypeError, ("state takes a module", "'model' of type str"), "plait.state([model])"
    ),
    "a static value without a hash, in a mapping": Row(
        "hash(plait.graph.HashableMapping({'sizes': [1, 2]}))",
        StaticValueError,
        (r"at +sizes", "list"),
        "hash(plait.graph.HashableMapping({'sizes': (1, 2)}))",
    ),
    "a perturbation of another shape": Row(
        "capture(model, model.layers[0].bias[...], x)",
        ShapeError,
        ("the perturbation 'h'", r"shape \(2,\) and a value of shape \(4, 2\)"),
        setup="def capture(self, *values):\n"
        "    plait.capture(lambda self: [self.perturb('h', v) for v in values], plait.Perturbation)(self)\n"
        "value = x",
        fix="self.perturb('h_2', value)",
        cure="plait.capture(lambda self: (self.perturb('h', x[0]), $), plait.Perturbation)(model)",
    ),
    "a sown value with the name of something else": Row(
        "model.sow(plait.Intermediate, 'calls', x)",
        ArgumentError,
        (r"at +Two\.calls", "a BatchStat"),
        "model.sow(plait.Intermediate, 'calls_values', x)",
    ),
    "a sown value without capture": Row(
        "model.sow(plait.Intermediate, 'h', x)",
        DeprecationWarning,
        "stores values as attributes",
        fix="plait.capture(model, plait.Intermediate)",
        cure="$(x)",
    ),
    "a method that is now a function": Row(
        "list(module.iter_modules())",
        DeprecationWarning,
        r"module\.iter_modules\(\): deprecated",
        fix="plait.iter_modules(module)",
        setup="module = model",
    ),
}
