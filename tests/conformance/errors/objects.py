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
    "a value and options in a mark": Row("plait.static(3, repr=False)", ArgumentTypeError,
        (r"static\(\) takes a value or field options", r"found +the value 3 and the options \['repr'\]")),
    "data under a static mark": Row("self.scales = plait.static(scales)", AttributeStatusError,
        (r"at +Two\.scales\[0\]", "a Param"), setup="self = model; scales = [plait.Param(x)]"),
    "a mark in a container": Row("self.scales = [plait.data(1.0)]", AttributeStatusError,
        (r"at +Two\.scales", r"found +data\(1\.0\) inside a list"), setup="self = model"),
    "a mark without a value": Row("self.scale = plait.data()", ArgumentTypeError,
        (r"at +Two\.scale", r"found +plait\.data\(\)"), setup="self = model"),
    "__slots__": Row("class Small(plait.Module):\n    __slots__ = ('w',)", ArgumentTypeError,
        ("Small defines __slots__", r"found +__slots__ = \('w',\)")),
    "a reserved name": Row("model._pytree__info = 3", ArgumentError,
        (r"at +Two\._pytree__info", "found +an assignment to '_pytree__info'")),
    "a captured module gets an attribute": Row("jax.jit(lambda x: setattr(model, 'scale', x) or x)(x)",
        TraceContextError,
        ("at +(model|a Two)", "set the attribute 'scale'",
        r"found +the current trace is a function under jit \(<lambda>\)")),
    "a key that is no attribute": Row("model._pytree__graph_set_key(0, x)", ArgumentError,
        ("Cannot set key 0 of a Two", r"found +a key of type int, and the attributes \['calls', 'drop', 'layers'\]")),
    "a key that is not there": Row("model._pytree__graph_pop_key('scale')", ArgumentError,
        ("Cannot pop key 'scale' of a Two",
        r"found +a key of type str, and the attributes \['calls', 'drop', 'layers'\]")),
    "an attribute that no module has": Row("model.set_attributes(training=True)", ArgumentError,
        (r"attributes: \['training'\]", "found +no matching module that has them")),
    "an index behind the end of a List": Row("plait.update(plait.List([x]), {3: x})", GraphError,
        ("Cannot set key 3 of a List", r"at +\[3\]", "found +a List of length 1")),
    "an index behind the end of a List, set": Row("plait.List([x])._pytree__graph_set_key(3, x)", GraphError,
        ("Cannot set key 3 of a List", "index below 2", "found +a List of length 1")),
    "an index behind the end of a list, set": Row("plait.graph.get_node_impl([x]).set_key([x], 3, x)", GraphError,
        ("Cannot set key 3 of a list", "found +a list of length 1")),
    "a word as a filter": Row("plait.state(model, 3)", FilterTypeError, "3 of type int"),
    "a filter behind the rest": Row("plait.split(model, ..., plait.Param)", FilterError,
        ("at +filter 0 of 2", r"found +\.\.\. before plait\.Param")),
    "a graph node registered twice": Row("register(); register()", GraphError,
        ("the graph node type Cell is already registered", "found +a second registration"), setup="class Cell: pass\n"
        "def register():\n"
        "    f = lambda *args: None\n"
        "    plait.graph.register_graph_node_type(Cell, lambda c: ((), None), setattr, delattr, f, f, f)"),
    "a pytree node registered twice": Row("register(); register()", GraphError,
        ("the pytree node type Cell is already registered", "found +a second registration"), setup="class Cell: pass\n"
        "def register():\n"
        "    plait.graph.register_pytree_node_type(Cell, lambda c: ((), None), lambda pairs, m: Cell())"),
    "two children with one key": Row("register('a', 'a'); plait.state(Pair(x, x))", GraphError,
        r"the keys \['a', 'a'\]", setup=REGISTER),
    "a key without a hash": Row("register([1], 'b'); plait.state(Pair(x, x))", GraphError, r"key \[1\] of type list",
        setup=REGISTER),
    "a word where a model belongs": Row("plait.state('model')", GraphTypeError,
        ("state takes a module", "'model' of type str")),
    "a static value without a hash, in a mapping": Row("hash(plait.graph.HashableMapping({'sizes': [1, 2]}))",
        StaticValueError, ("at +sizes", "found +list: unhashable type: 'list'")),
    "a perturbation of another shape": Row("capture(model, model.layers[0].bias[...], x)", ShapeError,
        ("the perturbation 'h'", r"at +Two\.h", r"found +a perturbation of shape \(2,\) and a value of shape \(4, 2\)"),
        setup="def capture(self, *values):\n"
        "    plait.capture(lambda self: [self.perturb('h', v) for v in values], plait.Perturbation)(self)"),
    "a sown value with the name of something else": Row("model.sow(plait.Intermediate, 'calls', x)", ArgumentError,
        (r"at +Two\.calls", "a BatchStat")),
    "a sown value without capture": Row("model.sow(plait.Intermediate, 'h', x)", DeprecationWarning,
        "stores values as attributes"),
    "a method that is now a function": Row("list(module.iter_modules())", DeprecationWarning,
        r"module\.iter_modules\(\): deprecated", setup="module = model"),
}  # fmt: skip
