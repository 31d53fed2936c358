"""Mistakes with graphdefs and states: split, merge, update, pop, and the contexts that split and merge."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisNameMismatchError,
    CapturedModelWarning,
    FilterError,
    GraphError,
    GraphTypeError,
    LostSharingWarning,
    PartitioningUnspecifiedError,
    RegistryError,
)

from .rows import Row

SPLIT = "graphdef, state = plait.split(model)\n"
LINEAR = "node = plait.Linear(2, 2, rngs=rngs); graphdef, part = plait.split(node); rest = plait.state(node)\n"
TUPLE = "pair = plait.Dict(both=(x, 1)); pair.both = plait.data((x, x)); State = plait.State\n"
SHARED = "a = plait.Param(x); node = plait.Dict(a=a, b=a)\n"
NAMED = "from plait.partitioning import tree_axes as axes; w = plait.Param(x, out_sharding=('rows', None))\n"

ROWS = {
    "an assigned list in itself": Row("model.extra = items", GraphError,
        (r"\.extra\n", r"at +Two\.extra", "found +the list that it is in"),
        setup="items = [plait.Param(x)]; items.append(items)"),
    "a list in itself": Row("plait.split(model)", GraphError,
        (r"model|extra\[1\]", r"at +extra\[1\]\[1\]", "found +the list that it is in"),
        setup="model.extra = [plait.Param(x)]; model.extra.append(model.extra)"),
    "a word is flattened": Row("plait.graph.flatten('model')", RegistryError, "'model' of type str"),
    "graph states of two models": Row("plait.merge(plait.graph.unpack(model), plait.graph.unpack(model.layers[0]))",
        GraphError, ("different graphdefs", "found +2 graph states")),
    "no graphdef": Row("plait.merge(state, graphdef)", GraphTypeError, "found +a State", setup=SPLIT),
    "a graphdef alone": Row("plait.merge(graphdef)", GraphTypeError, "a graphdef alone", setup=SPLIT),
    "two lists of leaves": Row("plait.merge(graphdef, leaves, leaves)", GraphError, "2 states, the first a list",
        setup=SPLIT + "leaves = jax.tree.leaves(state)"),
    "two states for a variable": Row("plait.update(variable, x, x)", GraphError, "2 states that are not empty",
        setup="variable = plait.Param(x)"),
    "an array is updated": Row("plait.update(x, x)", RegistryError,
        ("update takes a module", r"found +Array\(\[\[1\., 1\.\],")),
    "a mapping for a variable": Row("plait.update(model, {'calls': {'a': x}})", GraphError,
        ("at +calls", "a mapping where a leaf is expected", r"found +a dict: \{'a': Array\(\[\[1\., 1\.\],")),
    "an array for a module": Row("plait.update(model, {'drop': x})", GraphError,
        ("at +drop", "a leaf where a subgraph is expected", r"found +a jax\.Array: Array\(\[\[1\., 1\.\],")),
    "a model that contains itself, given to JAX": Row("jax.tree.map(f, model)", GraphError,
        ("at +the root and back", "contains itself", "found +the same Two at both: a cycle"),
        setup="model.back = model; f = lambda *leaf: leaf[-1]"),
    "a model that contains itself, with paths": Row("jax.tree_util.tree_flatten_with_path(model)", GraphError,
        ("contains itself", "at +the root and back", "found +the same Two at both: a cycle"),
        setup="model.back = model"),
    "a list that was put into itself, given to JAX": Row("jax.tree.leaves(model)", GraphError,
        (r"at +extra\n", "found +the list that it is in"),
        setup="model.extra = [plait.Param(x)]; model.extra.append(model.extra)"),
    "a list of numbers that was put into itself": Row("jax.tree.leaves(model)", GraphError,
        (r"at +extra\[1\]\n", "found +the list that it is in"),
        setup="model.extra = [1]; model.extra.append(model.extra)"),
    "a tied model, given to JAX": Row(
        "jax.jit(f)(model, x)",
        LostSharingWarning,
        setup="model.head = model.layers[0]; f = lambda model, x: x",
        fix="plait.jit(f)(model, x)",
        text="""
            JAX was given a model with a shared part, and makes a copy for each path
              at        head and layers[0]
              found     the same Linear at both
              expected  a tree, because here JAX itself flattens the model (jax.tree.map, jax.jit)
              do        use plait's own transforms, plait.jit(f)(model, x), and plait.map(f, state) for
                        plait.state(model)
        """,
    ),
    "a function that closes over its model": Row("plait.split(model)", CapturedModelWarning,
        ("at +act", "found +'<lambda>', whose 'model' is a Two of it; in transforms and clones it "),
        setup="model.act = (lambda model: lambda: model(x))(model)"),
    "a part that the graph does not have": Row("plait.update(model, {'head': {'w': x}})", GraphError,
        ("at +head", r"the entries \['w'\]")),
    "an entry of a tuple": Row("plait.update(pair, {'both': {0: x + 1}})", GraphError,
        (r"at +both\[0\]", "a tuple, which is immutable", "found +a ArrayImpl in a tuple"), setup=TUPLE),
    "an element behind the end": Row("plait.update(model, {'layers': {5: x}})", GraphError,
        (r"at +layers\[5\]", "a list of length 2")),
    "pop without a filter": Row("plait.pop(model)", FilterError, ("Expected at least one filter", "found +no filter")),
    "pop from the middle of a List": Row("plait.pop(model, filter)", GraphError,
        ("Cannot pop key 0 of a List: the elements after it would move", r"at +\[0\]",
        r"found +\[1\], which stays; update would overwrite it"),
        setup="model = plait.List([plait.Param(x), plait.Param(x)]); filter = lambda path, leaf: path == (0,)"),
    "a stack of a model without a list": Row("plait.as_stack(plait.Dict(x=x))", ArgumentError,
        ("as_stack found no list of equal blocks", "found +no list")),
    "pop from a tuple": Row("plait.pop(pair, ...)", GraphError, (r"at +both\[\d\]", "found +a ArrayImpl in a tuple"),
        setup=TUPLE),
    "a clone of arrays without variables": Row("plait.clone(model, variables=False, arrays=True)", ArgumentError,
        "variables=False, arrays=True"),
    "a shared variable in tree mode": Row(
        "plait.split(node, graph=False)",
        GraphError,
        setup=SHARED,
        fix="graph=True",
        cure="plait.split(node, $); node.b = plait.clone(node.a); plait.split(node, graph=False)",
        text="""
            Duplicate Param found at paths of one tree: tree mode takes no shared objects and no cycles
              at        a and b
              found     the same Param at both (a duplicate)
              expected  each object at one path
              do        use graph mode (graph=True), or put a separate object at each path: plait.clone
        """,
    ),
    "a shared variable in tree mode, in an argument": Row("plait.jit(lambda model: 0, graph=False)(node)", GraphError,
        (r"at +model\.a and model\.b\n", r"found +the same Param at both \(a duplicate\)"), setup=SHARED),
    "a class that is no pytree in tree mode": Row("plait.split(Cell(), graph=False)", GraphError,
        ("at +the root", "found +a Cell, whose class says pytree=False"),
        setup="class Cell(plait.Module, pytree=False): pass"),
    "the children of an array": Row("list(plait.iter_children(x))", GraphError,
        ("iter_children takes a module", r"found +Array\(\[\[1\., 1\.\],")),
    "no context": Row("plait.graph.current_update_context('a')", GraphError,
        ("the tag 'a'", r"found +the tags \[\] in this thread")),
    "an axis without a name": Row("axes.add_axis(w, 0, {})", PartitioningUnspecifiedError,
        ("needs the name of the axis", r"found +\{\}"), setup=NAMED),
    "an axis with another name": Row("axes.remove_axis(w, 0, {plait.PARTITION_NAME: 'layers'})", AxisNameMismatchError,
        ("axis 0 of a Param", "'rows'", r"at +axis 0 of a Param, whose out_sharding is \('rows', None\)"),
        setup=NAMED),
    "a diff of models": Row("plait.diff(a, b)", ArgumentTypeError, "found +a Linear", setup="a, b = model.layers"),
    "a state that lacks a leaf": Row(
        "del part['bias']; plait.merge(graphdef, part)",
        GraphError,
        setup=LINEAR + "State = plait.State",
        fix="State.merge(part, rest)",
        cure="del part['bias']; plait.merge(graphdef, $)",
        text="""
            Incorrect number of leaves: the state lacks a leaf of the graphdef
              at        bias of a Linear
              found     nothing
              expected  a Param
              do        pass a state of the same model; add missing parts with State.merge(part, rest)
        """,
    ),
    "a state entry for a static attribute": Row("part['in_features'] = x; plait.merge(graphdef, part)", GraphError,
        ("at +in_features of a Linear", r"found +a jax\.Array: Array\(\[\[1\., 1\.\],"), setup=LINEAR),
    "a mapping in a state": Row("part['bias'] = {'b': x}; plait.merge(graphdef, part)", GraphError,
        ("at +bias of a Linear", "a mapping where a leaf is expected", r"found +a dict: \{'b': Array\(\[\[1\., 1\.\],"),
        setup=LINEAR),
    "a leaf in a state": Row("state['drop'] = x; plait.merge(graphdef, state)", GraphError,
        ("at +drop of a Two", "the entries of a Dropout", r"found +a jax\.Array: Array\(\[\[1\., 1\.\],"),
        setup=SPLIT),
    "an entry too many in a state": Row("part['scale'] = x; plait.merge(graphdef, part)", GraphError,
        ("at +scale", r"only \['bias', 'kernel'\]", r"found +1 unknown path\(s\) under a Linear"), setup=LINEAR),
    "too few leaves": Row("plait.merge(graphdef, [x])", GraphError,
        ("found +number of leaves: 1", r"expected +number of leaves: \d"), setup=SPLIT),
    "a cached module of another class": Row("unflatten(graphdef, state, index_ref_cache={0: model})", GraphError,
        ("^Expected a node of type Linear, but the cache has a Two", "at +index 0", "found +a Two"),
        setup="node = model.layers[0]; graphdef, state = plait.split(node); unflatten = plait.graph.unflatten"),
    "a cached variable of another class": Row("unflatten(graphdef, state, index_ref_cache={0: plait.BatchStat(x)})",
        GraphError,
        ("^Expected a node of type Param, but the cache has a BatchStat", "at +index 0", "found +a BatchStat"),
        setup="node = plait.Param(x); graphdef, state = plait.split(node); unflatten = plait.graph.unflatten"),
    "an index that is already used": Row("unflatten(graphdef, state, index_ref={0: model})", RegistryError,
        ("^index 0 of the graphdef is already used", "found +a Two in index_ref, for a Two"),
        setup=SPLIT + "unflatten = plait.graph.unflatten"),
    "a back-reference to nothing": Row("with plait.graph.merge_context() as ctx: ctx.merge(again, empty)", GraphError,
        "index 0 of type Two", setup="with plait.graph.split_context() as ctx:\n"
        "    (first, state), (again, empty) = ctx.split(model), ctx.split(model)"),
    "filters that do not cover": Row(
        "plait.split(model, plait.BatchStat)",
        FilterError,
        fix="plait.split(model, plait.Param, ...)",
        text="""
            Non-exhaustive filters: some leaves match none of them
              at        drop.rngs.count (RngCount), drop.rngs.key (RngKey), layers[0].bias (Param), layers[0].kernel
                        (Param), layers[1].bias (Param), layers[1].kernel (Param)
              found     6 of 7 leaves not matched by plait.BatchStat
              expected  filters that together match every leaf
              do        add `...` as the last filter, for all other leaves: plait.split(model, plait.Param, ...)
        """,
    ),
    "a leaf without a path": Row("plait.from_flat_state([((), x)])", GraphError,
        ("an empty path", r"found +Array\(\[\[1\., 1\.\],")),
    "a leaf on the way of another": Row("plait.from_flat_state([(('a',), x), (('a', 'b'), x)])", GraphError,
        (r"at +a\.b", "found +a leaf and a nested state at the same path")),
    "a leaf in place of others": Row("plait.from_flat_state([(('a', 'b'), x), (('a',), x)])", GraphError,
        (r"at +a\n", "found +a leaf and a nested state at the same path")),
    "a path that the state does not have": Row("plait.replace_by_pure_dict(state, {'head': x})", GraphError,
        ("at +head", r"found +Array\(\[\[1\., 1\.\],"), setup=SPLIT),
    "several states in one dict": Row("plait.to_pure_dict(plait.state(model, plait.Param, ...))", ArgumentTypeError,
        "found +a tuple"),
    "a number as a state": Row("plait.update(model, 3)", ArgumentTypeError, "found +an int"),
}  # fmt: skip
