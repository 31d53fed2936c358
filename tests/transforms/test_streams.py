"""Streams split, forked and reseeded inside a graph: Flax's keys, and everything back afterwards. (R6, R7, R8)"""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import (
    ArgumentError,
    GraphError,
    StreamError,
    TraceContextError,
)
from plait.transforms.streams import SplitBackups, StreamBackup
from tests.nn.twins import flax_nnx, users_promotion
from tests.oracles import describe
from tests.sampling import slow_but


def data(key):
    return jax.random.key_data(key).tolist()


def contents(lib, *nodes):
    """Tag, keys and counters of every stream, by path."""
    return {
        path: (value.tag, data(value.key[...]), value.count[...].tolist(), str(value.count[...].dtype))
        for path, value in lib.iter_graph(nodes)
        if isinstance(value, lib.RngStream)
    }


def model_of(lib):
    """A module with streams of its own, one of them shared."""

    class Net(lib.Module):
        def __init__(self, rngs):
            self.drops = lib.List([lib.Dropout(0.5, rngs=rngs), lib.Dropout(0.5, rngs=rngs)])
            self.again = self.drops[0]
            self.rngs = rngs

    return Net(lib.Rngs(0, params=1, dropout=2))


NODES = {
    "rngs": lambda lib: lib.Rngs(0, params=1, dropout=2),
    "stream": lambda lib: lib.RngStream(3, tag="params"),
    "used streams": lambda lib: [lib.Rngs(params=1).fork(), lib.RngStream(3, tag="params").fork()],
    "module": model_of,
    "containers": lambda lib: {"a": [lib.Rngs(1)], "b": (lib.RngStream(2, tag="params"), jnp.ones(2), None)},
}
FILTERS = {
    "all": lambda lib: ...,
    "name": lambda lib: "params",
    "names": lambda lib: ("params", "dropout"),
    "not a name": lambda lib: lib.Not("params"),
    "path": lambda lib: lib.PathContains("rngs"),
    "both variables": lambda lib: lib.RngState,
    "only the key": lambda lib: lib.RngKey,
    "function": lambda lib: lambda path, value: path[-1] in ("key", "count") and "default" in path,
    "none": lambda lib: None,
}


def both(run):
    """What a function of the library gives with plait and with Flax."""
    return run(plait), run(flax_nnx())


# split_rngs -----------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("only", FILTERS.values(), ids=FILTERS)
def test_r6_split_streams_and_restored_ones_are_flax_s(node, only):
    def run(lib):
        target = node(lib)
        backups = lib.split_rngs(target, splits=3, only=only(lib))
        during = contents(lib, target)
        lib.restore_rngs(backups)
        return during, contents(lib, target)

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.oracle
@pytest.mark.parametrize("splits", [1, 4, (2, 3), (), 0], ids=repr)
@pytest.mark.parametrize("graph_updates", [True, False])
def test_r6_shapes_of_splits_are_flax_s(splits, graph_updates):
    def run(lib):
        rngs = lib.Rngs(0, params=1)
        new = lib.split_rngs(rngs, splits=splits, graph_updates=graph_updates)
        return contents(lib, rngs if graph_updates else new), contents(lib, rngs)

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.oracle
def test_r6_squeeze_is_flax_s():
    def run(lib):
        rngs = lib.Rngs(0, params=1)
        lib.split_rngs(rngs, splits=1, squeeze=True, only="params")
        return contents(lib, rngs)

    mine, theirs = both(run)
    assert mine == theirs


def test_r6_the_variables_stay_the_same_objects_and_keep_their_metadata():
    rngs = plait.Rngs(params=0)
    key, count = rngs.params.key, rngs.params.count
    key.set_metadata(note=1)
    plait.split_rngs(rngs, splits=2)
    assert rngs.params.key is key
    assert rngs.params.count is count
    assert (key.tag, key.note) == ("params", 1)


def test_r6_backups_are_what_is_restored():
    rngs = plait.Rngs(params=4)
    backups = plait.split_rngs(rngs, splits=2)
    assert isinstance(backups, SplitBackups)
    (backup,) = backups
    assert isinstance(backup, StreamBackup)
    assert backup.stream is rngs.params
    assert (data(backup.key), int(backup.count)) == (data(jax.random.key(4)), 1)


def test_r6_as_a_context_manager_it_restores_on_error_too():
    rngs = plait.Rngs(params=0)
    with pytest.raises(KeyError, match="stop"), plait.split_rngs(rngs, splits=2):
        raise KeyError("stop")
    assert contents(plait, rngs) == {(0, "params"): ("params", [0, 0], 1, "uint32")}


@st.composite
def some_streams(draw):
    """Streams, some reached by several paths, some sharing their variables with a view."""
    pool = [
        plait.RngStream(seed, tag=tag) for seed, tag in draw(st.lists(st.tuples(st.integers(0, 9), TAGS), min_size=1))
    ]
    picked = draw(st.lists(st.sampled_from(pool), max_size=5))
    layers = [plait.Dropout(0.5, rngs=stream) for stream in picked]
    return [pool, {"again": picked}, layers, [plait.view(layer, deterministic=True) for layer in layers]]


TAGS = st.sampled_from(["a", "b", "default"])


@pytest.mark.slow
@given(some_streams(), st.sampled_from([1, 3, (2, 2)]), st.sampled_from([..., "a", plait.Not("a")]))
def test_r6_a_new_node_is_what_in_place_gives(node, splits, only):
    other = plait.clone(node)
    new = plait.split_rngs(node, splits=splits, only=only, graph_updates=False)
    backups = plait.split_rngs(other, splits=splits, only=only)
    assert describe(new) == describe(plait.clone(other))  # a copy has its attributes sorted
    plait.restore_rngs(backups)
    assert describe(node) == describe(other)


def test_r6_a_new_node_shares_what_was_not_split():
    model = model_of(plait)
    new = plait.split_rngs(model, splits=2, only="params", graph_updates=False)
    assert new is not model
    assert new.again is new.drops[0]
    assert new.rngs.dropout.key is model.rngs.dropout.key
    assert new.rngs.params.key is not model.rngs.params.key
    assert model.rngs.params.key.shape == ()


@pytest.mark.oracle
@pytest.mark.parametrize("modes", [{"graph_updates": False}, {"graph": False}], ids=repr)
def test_r6_copies_are_flax_s_and_the_original_has_made_its_draw(modes):
    def run(lib):
        rngs = lib.Rngs(0, params=1)
        first = lib.split_rngs(rngs, splits=2, only="params", **modes)
        second = lib.fork_rngs(rngs, **modes)
        return contents(lib, first), contents(lib, second), contents(lib, rngs)

    mine, theirs = both(run)
    assert mine == theirs


def test_r6_streams_without_a_split_are_left_alone_by_type():
    assert list(plait.split_rngs([jnp.ones(2), plait.Linear(2, 2, rngs=plait.Rngs(0))], splits=2)) == []


# As a decorator -------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("modes", [{}, {"graph_updates": False}], ids=repr)
@pytest.mark.parametrize("name", ["split_rngs", "fork_rngs"])
def test_r6_r7_a_decorated_call_sees_new_keys_in_all_arguments_as_in_flax(name, modes):
    def run(lib):
        options = {"splits": 2, "only": lib.Not("params")} if name == "split_rngs" else {}
        seen = []

        @getattr(lib, name)(**options, **modes)
        def call(number, model, *, streams):
            seen.append(contents(lib, model, streams))
            assert streams["again"] is streams["stream"]
            return number

        model, stream = model_of(lib), lib.RngStream(5, tag="x")
        for number in range(2):
            assert call(number, model, streams={"stream": stream, "again": stream}) == number
            seen.append(contents(lib, model, stream))
        return seen

    mine, theirs = both(run)
    assert mine == theirs


def test_r6_a_decorated_call_restores_on_error():
    @plait.split_rngs(splits=2)
    def fail(rngs):
        raise KeyError(rngs.params.key.shape)

    rngs = plait.Rngs(params=0)
    with pytest.raises(KeyError, match="2"):
        fail(rngs)
    assert contents(plait, rngs) == {(0, "params"): ("params", [0, 0], 1, "uint32")}


def test_r6_what_a_call_does_besides_is_kept():
    @plait.split_rngs(splits=2)
    def call(model):
        model.note = 1
        model.rngs.params.count[...] += jnp.uint32(7)
        return model

    model = model_of(plait)
    assert call(model) is model
    assert (model.note, int(model.rngs.params.count[...])) == (1, 1)


def test_x1_the_decorator_works_without_arguments_and_keeps_the_signature():
    def call(rngs: plait.Rngs):
        """Draws."""
        return data(rngs.params())

    forked = plait.fork_rngs(call)
    assert (forked.__name__, forked.__doc__) == ("call", "Draws.")
    assert forked(plait.Rngs(params=0)) == data(plait.Rngs(params=0).fork().params())
    assert plait.split_rngs(lambda rngs: rngs.params.key.shape, splits=2)(plait.Rngs(params=0)) == (2,)


def test_r6_a_decorated_method_splits_the_streams_of_self():
    class Net(plait.Module):
        def __init__(self):
            self.rngs = plait.Rngs(params=0)

        @plait.split_rngs(splits=3)
        def keys(self, other):
            return self.rngs.params.key.shape, other.key.shape

    assert Net().keys(plait.RngStream(0, tag="x")) == ((3,), (3,))


# Under transforms -----------------------------------------------------------------------------------------------------


def mapped(lib, rngs):
    """Two draws under vmap over the streams."""
    if lib is plait:
        graphdef, state = plait.split(rngs)

        def draws(state):
            rngs = plait.merge(graphdef, state)
            return rngs.params(), rngs.dropout.uniform((2,))

        return jax.vmap(draws)(state)
    return lib.vmap(lambda rngs: (rngs.params(), rngs.dropout.uniform((2,))))(rngs)


@pytest.mark.oracle
@pytest.mark.parametrize("where", slow_but(["eager"], ["eager", "inside jit", "around jit"]))
@pytest.mark.parametrize("modes", [{}, {"graph_updates": False}], ids=repr)
def test_r6_mapped_draws_are_flax_s_in_and_out_of_jit(where, modes):
    def run(lib):
        def call(rngs):
            return mapped(lib, rngs)

        call = lib.jit(call) if where == "around jit" else call
        call = lib.split_rngs(splits=3, **modes)(call)
        call = lib.jit(call) if where == "inside jit" else call
        rngs, results = lib.Rngs(0, params=1, dropout=2), []
        for _ in range(2):
            with users_promotion():
                keys, numbers = call(rngs)
            results.append((data(keys), numbers.tolist(), contents(lib, rngs)))
        return results

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.parametrize("name", ["split_rngs", "fork_rngs"])
def test_streams_of_another_trace_are_refused_and_unchanged(name):
    rngs = plait.Rngs(params=0)
    options = {"splits": 2} if name == "split_rngs" else {}

    @jax.jit
    def leak():
        getattr(plait, name)(rngs, **options)

    with pytest.raises(TraceContextError, match="change the stream 'params'"):
        leak()
    assert contents(plait, rngs) == {(0, "params"): ("params", [0, 0], 0, "uint32")}


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@pytest.mark.parametrize("action", ["restore", "reseed"])
def test_restoring_and_reseeding_from_another_trace_change_nothing(action):
    rngs = plait.Rngs(params=0, dropout=1)
    backups = plait.backup_keys(rngs)
    before = contents(plait, rngs)

    @plait.jit
    def leak(own):
        if action == "restore":
            plait.restore_rngs([*plait.backup_keys(own), *backups])
        else:
            plait.reseed([own, rngs], params=3)

    own = plait.Rngs(params=9)
    with pytest.raises(TraceContextError, match="change the stream"):
        leak(own)
    assert contents(plait, rngs) == before
    assert contents(plait, own) == {(0, "params"): ("params", [0, 9], 0, "uint32")}


# fork_rngs and backup_keys --------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:The 'split' argument:DeprecationWarning")
@pytest.mark.parametrize("split", [None, 2, (2, 3), {"params": 3}, {"params": None}, {"nobody": 2}], ids=repr)
@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_r7_forked_streams_and_restored_ones_are_flax_s(node, split):
    def run(lib):
        target = node(lib)
        backups = lib.fork_rngs(target, split=split)
        during = contents(lib, target)
        lib.restore_rngs(backups)
        return during, contents(lib, target)

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:The 'split' argument:DeprecationWarning")
@pytest.mark.parametrize("split", [{"params": 3, ...: None}, {"params": 3, ...: 2}, {...: 2, "params": 3}], ids=repr)
def test_r7_the_first_filter_counts_as_in_flax_s_copies(split):
    def run(lib):
        return contents(lib, lib.fork_rngs(lib.Rngs(0, params=1), split=split, graph_updates=False))

    mine, theirs = both(run)
    assert mine == theirs
    rngs = plait.Rngs(0, params=1)
    plait.fork_rngs(rngs, split=split)
    assert contents(plait, rngs) == mine


def test_r7_backup_keys_notes_keys_and_not_counters():
    model = model_of(plait)
    keys = {path: each[1] for path, each in contents(plait, model).items()}
    backups = plait.backup_keys(model)
    assert all(isinstance(backup, StreamBackup) for backup in backups)
    model.rngs.params()
    plait.reseed(model, dropout=7)
    model.rngs.params()
    plait.restore_rngs(backups)
    assert {path: each[1] for path, each in contents(plait, model).items()} == keys
    assert int(model.rngs.params.count[...]) == 2


# with_rngs ------------------------------------------------------------------------------------------------------------

RULES = {
    "nothing": {},
    "split": {"split": 2},
    "split one": {"split": {"params": 2}},
    "split to a shape": {"split": {"params": (2, 3)}},
    "the first filter counts": {"split": {"params": 2, ...: 3}},
    "the first filter counts, also one for all": {"split": {...: 3, "params": 2}},
    "split and fork": {"split": {"params": 2}, "fork": "dropout"},
    "fork the rest": {"split": {"params": 2}, "fork": ...},
    "fork the rest, as a list": {"split": {"params": 2}, "fork": ["dropout", ...]},
    "fork two": {"fork": ["dropout", "params"]},
    "fork none": {"fork": False},
    "broadcast": {"broadcast": (2, 2)},
    "broadcast the rest": {"split": {"params": 2}, "broadcast": 3},
    "split goes first": {"split": 2, "broadcast": {"params": 3}},
    "broadcast goes before fork": {"fork": "params", "broadcast": 4},
    "only": {"split": 2, "only": "params"},
    "only by path": {"fork": ..., "only": plait.PathContains("default")},
}


@pytest.mark.oracle
@pytest.mark.parametrize(
    "node", slow_but([model_of], [NODES["rngs"], NODES["stream"], model_of]), ids=["rngs", "stream", "module"]
)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_r7_with_rngs_is_flax_s(node, rules):
    def run(lib):
        target = node(lib)
        only = rules.get("only", True)
        only = lib.PathContains("default") if isinstance(only, plait.PathContains) else only
        new = lib.with_rngs(target, **{**rules, "only": only}, graph_updates=False)
        return contents(lib, new), contents(lib, target)

    mine, theirs = both(run)
    assert mine == theirs


def test_r7_with_rngs_makes_a_copy_in_the_default_mode_too():
    model = model_of(plait)
    new = plait.with_rngs(model, split={"params": 2})
    assert (new.rngs.params.key.shape, model.rngs.params.key.shape) == ((2,), ())
    assert new.rngs.dropout is not model.rngs.dropout
    assert new.rngs.dropout.key is model.rngs.dropout.key
    assert new.again is new.drops[0]


# reseed ---------------------------------------------------------------------------------------------------------------

SOURCES = {
    "integer": lambda lib: {"dropout": 5},
    "two": lambda lib: {"dropout": 5, "params": jax.random.key(3)},
    "raw key": lambda lib: {"params": jax.random.PRNGKey(3)},
    "stream": lambda lib: {"dropout": lib.RngStream(4, tag="z")},
    "unknown": lambda lib: {"nobody": 5},
}


def draw_everywhere(lib, model):
    model.drops[0].rngs()
    model.rngs.params()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:reseed. no stream has this tag:plait.errors.NothingSelectedWarning")
@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_r8_reseeded_streams_are_flax_s(sources):
    def run(lib):
        model = model_of(lib)
        draw_everywhere(lib, model)
        assert lib.reseed(model, **sources(lib)) is None
        return contents(lib, model)

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.oracle
@pytest.mark.parametrize("policy", ["match_shape", lambda path, key, shape: jax.random.split(key, (*shape, 2))])
def test_r8_policies_are_flax_s(policy):
    def run(lib):
        model = model_of(lib)
        lib.split_rngs(model, splits=(2, 2), only="dropout")
        lib.reseed(model, dropout=5, params=6, policy=policy)
        return contents(lib, model)

    mine, theirs = both(run)
    assert mine == theirs


@pytest.mark.oracle
def test_r8_a_policy_sees_path_key_and_shape_as_in_flax():
    def run(lib):
        calls = []

        def policy(path, key, shape):
            calls.append((path, data(key), shape))
            return key

        model = model_of(lib)
        lib.split_rngs(model, splits=2, only="dropout")
        lib.reseed(model, dropout=5, default=1, policy=policy)
        return calls, contents(lib, model)

    mine, theirs = both(run)
    assert mine == theirs


# Errors ---------------------------------------------------------------------------------------------------------------


def decorator(splits):
    return plait.split_rngs(splits=splits, squeeze=True)


@pytest.mark.parametrize("name", ["split_rngs", "fork_rngs", "with_rngs"])
def test_streams_that_are_split_already_are_named_and_nothing_changes(name):
    model = model_of(plait)
    plait.split_rngs(model, splits=2, only=plait.PathContains("params"))
    before = describe(model)
    options = {"split_rngs": {"splits": 3}, "fork_rngs": {}, "with_rngs": {"fork": ...}}[name]
    with pytest.raises(
        StreamError, match=r"'params' has an array of keys[\s\S]*at +rngs\.params\n +found +keys of shape \(2,\)"
    ):
        getattr(plait, name)(model, **options)
    assert describe(model) == before


@pytest.mark.parametrize("updates", [True, False])
def test_the_error_of_a_decorator_names_the_argument(updates):
    """R6."""
    model = model_of(plait)
    plait.split_rngs(model, splits=2)

    @plait.split_rngs(splits=3, graph_updates=updates)
    def call(first, *rest, **named):
        return first

    cases = {
        r"first\.again\.rngs": (model,),
        r"rest\[0\]\[1\]\.d\.again\.rngs": (0, [0, {"d": model}]),
    }
    for place, args in cases.items():
        with pytest.raises(StreamError, match=rf"at +{place}\n"):
            call(*args)
    with pytest.raises(StreamError, match=r"at +model\[0\]\.again\.rngs\n"):
        call(0, model=[model])


@pytest.mark.parametrize("name", ["split_rngs", "fork_rngs", "with_rngs", "backup_keys", "reseed"])
def test_tree_mode_refuses_shared_streams(name):
    stream = plait.RngStream(0, tag="a")
    options = {"splits": 2} if name == "split_rngs" else {}
    with pytest.raises(GraphError, match=r"\[0\] and \[1\]"):
        getattr(plait, name)([stream, stream], graph=False, **options)
    with plait.set_graph_mode(False), pytest.raises(GraphError, match=r"\[0\] and \[1\]"):
        getattr(plait, name)([stream, stream], **options)
    with plait.set_graph_mode(False):
        getattr(plait, name)([stream, stream], graph=True, **options)


def test_a_key_in_a_reference_keeps_its_shape_and_can_be_copied():
    with plait.var_defaults(ref=True):
        rngs = plait.Rngs(params=0)
    with pytest.raises(ArgumentError, match=r"in a reference[\s\S]*graph_updates=False"):
        plait.split_rngs(rngs, splits=2)
    assert int(rngs.params.count[...]) == 0
    new = plait.split_rngs(rngs, splits=2, graph_updates=False)
    assert new.params.key.shape == (2,)
    assert new.params.key.ref
    assert int(rngs.params.count[...]) == 1
    plait.restore_rngs(plait.fork_rngs(rngs))
    assert (data(rngs.params.key[...]), int(rngs.params.count[...])) == ([0, 0], 2)


def test_with_rngs_decorates_a_function_too():
    """The arguments are copies with other streams; the original streams have made one draw."""

    @plait.with_rngs(split=3, graph_updates=False)
    def shapes(rngs):
        return rngs.params.key.shape

    rngs = plait.Rngs(params=0)
    assert shapes(rngs) == (3,)
    assert (rngs.params.key.shape, int(rngs.params.count[...])) == ((), 1)
