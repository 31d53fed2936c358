"""Run in a process of its own, since TensorFlow's devices are made once: JaxModule on a mesh of eight CPU devices.

Prints a JSON object: for each check its outcome, ``"ok"`` or what went wrong.
"""

import json
import sys
import threading
import traceback
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from plait import export
from plait.export import dtensor_utils

FOLDER = sys.argv[1]
CHECKS = []
PARAMS = {"kernel": np.arange(32, dtype=np.float32).reshape(8, 4), "bias": np.ones(4, np.float32)}


def check(function):
    CHECKS.append(function)
    return function


def apply(p, x):
    return x @ p["kernel"] + p["bias"][None]


def mesh(*sizes, names="abc"):
    return Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), tuple(names[: len(sizes)]))


def laid_out(on, kernel):
    specs = {"kernel": kernel, "bias": P()}
    return {name: jax.device_put(value, NamedSharding(on, specs[name])) for name, value in PARAMS.items()}, specs


def module(params, specs, **arguments):
    return export.JaxModule(params, apply, trainable=True, input_polymorphic_shape="b, 8", pspecs=specs, **arguments)


def raised(kind, *texts):
    """A context that wants this error, with these texts in its message."""

    class Wanted:
        def __enter__(self):
            return self

        def __exit__(self, _, error, __):
            assert isinstance(error, kind), repr(error)
            missing = [text for text in texts if text not in str(error)]
            assert not missing, f"{missing} not in {error}"
            return True

    return Wanted()


@check
def e25_the_context_is_a_stack_of_this_thread():
    assert export.dtensor_initialized()
    assert export.get_current_mesh() is None
    assert export.get_current_dtensor_mesh() is None
    outer, inner = mesh(4, 2), mesh(8)
    with export.maybe_enable_dtensor_export_on(outer):
        assert export.get_current_mesh().jax_mesh is outer
        with export.maybe_enable_dtensor_export_on(inner):
            assert export.get_current_mesh().jax_mesh is inner
            with export.maybe_enable_dtensor_export_on(None):
                assert export.get_current_mesh().jax_mesh is inner
        assert export.get_current_dtensor_mesh().dim_names == ["a", "b"]
        assert [export.get_current_dtensor_mesh().dim_size(name) for name in "ab"] == [4, 2]
        seen = []
        thread = threading.Thread(target=lambda: seen.append(export.get_current_mesh()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert export.get_current_mesh() is None


@check
def e25_a_second_start_is_refused():
    with raised(RuntimeError, "already initialized"):
        export.initialize_dtensor()


@check
def e26_variables_are_laid_out_by_their_specs():
    on = mesh(4, 2)
    params, specs = laid_out(on, P("a", "b"))
    with export.maybe_enable_dtensor_export_on(on):
        made = module(params, specs)
        by_name = {v.name.removesuffix(":0"): v for v in made.variables}
        layout = tf.experimental.dtensor.fetch_layout(by_name["kernel"].read_value())
        assert layout.sharding_specs == ["a", "b"], layout
        shards = [shard.numpy() for shard in tf.experimental.dtensor.unpack(by_name["kernel"].read_value())]
        expected = [PARAMS["kernel"][2 * i : 2 * i + 2, 2 * j : 2 * j + 2] for i in range(4) for j in range(2)]
        for shard, part in zip(shards, expected, strict=True):
            np.testing.assert_array_equal(shard, part)
        assert tf.experimental.dtensor.fetch_layout(by_name["bias"].read_value()).sharding_specs == ["unsharded"]
        assert len(made.trainable_variables) == 2


@check
def e29_a_saved_model_has_the_values_and_serves_without_a_mesh():
    on = mesh(4, 2)
    params, specs = laid_out(on, P("a", "b"))
    signature = [tf.TensorSpec((None, 8), tf.float32, name="x")]
    with export.maybe_enable_dtensor_export_on(on):
        made = module(params, specs)
        manager = export.ExportManager(made, [export.ServingConfig("s", signature)])
        new = {name: 2 * value for name, value in params.items()}
        made.update_variables(new)
        layout = tf.experimental.dtensor.fetch_layout(made.tf_var_leaves[1].read_value())
        assert layout.sharding_specs == ["a", "b"], layout
        manager.save(f"{FOLDER}/model")
    x = np.ones((3, 8), np.float32)
    np.testing.assert_allclose(
        made.jax_methods[export.JaxModule.DEFAULT_METHOD_KEY](x), 2 * apply(PARAMS, x), rtol=1e-5
    )
    loaded = tf.saved_model.load(f"{FOLDER}/model")
    np.testing.assert_allclose(loaded.signatures["s"](x=tf.constant(x))["output_0"], 2 * apply(PARAMS, x), rtol=1e-5)


@check
def e46_a_function_jitted_over_the_mesh_of_its_parameters():
    on = mesh(4, 2)
    params, specs = laid_out(on, P("a", "b"))
    shardings = {name: NamedSharding(on, spec) for name, spec in specs.items()}
    jitted = jax.jit(apply, in_shardings=(shardings, NamedSharding(on, P())))
    with export.maybe_enable_dtensor_export_on(on):
        made = export.JaxModule(params, jitted, trainable=True, input_polymorphic_shape="b, 8", pspecs=specs)
        signature = [tf.TensorSpec((None, 8), tf.float32, name="x")]
        export.ExportManager(made, [export.ServingConfig("s", signature)]).save(f"{FOLDER}/jitted")
    x = np.ones((3, 8), np.float32)
    loaded = tf.saved_model.load(f"{FOLDER}/jitted")
    np.testing.assert_allclose(loaded.signatures["s"](x=tf.constant(x))["output_0"], apply(PARAMS, x), rtol=1e-5)


@check
def e26_mesh_and_specs_go_together():
    on = mesh(4, 2)
    params, specs = laid_out(on, P("a"))
    with raised(ValueError, "pspecs", "initialize_dtensor", "maybe_enable_dtensor_export_on"):
        module(params, specs)
    with export.maybe_enable_dtensor_export_on(on):
        with raised(ValueError, "pspecs"):
            module(params, None)
        with raised(ValueError, "pspecs", "structure"):
            module(params, {"kernel": P()})
        with raised(TypeError, "pspecs", "'a'"):
            module(params, {"kernel": "a", "bias": P()})
        with warnings.catch_warnings(record=True) as caught, raised(ValueError, "pspecs"):
            warnings.simplefilter("always")
            module({**params, "bias": PARAMS["bias"]}, specs)
        assert any("jax.Array" in str(each.message) for each in caught)
        made = module(params, specs)
    with raised(ValueError, "pspecs"):
        made.update_variables(params)


@check
def e27_tuples_are_reduced_to_the_axes_that_divide():
    on = mesh(4, 1, 2)
    for spec, axes in [
        (P(("a", "b")), ["a", "unsharded"]),
        (P(None, ("b",)), ["unsharded"] * 2),
        (P(("b", "c"), None), ["c", "unsharded"]),
    ]:
        params, specs = laid_out(on, spec)
        with export.maybe_enable_dtensor_export_on(on):
            made = module(params, specs)
            layout = tf.experimental.dtensor.fetch_layout(made.tf_var_leaves[1].read_value())
        assert layout.sharding_specs == axes, (spec, layout)


@check
def e27_several_axes_need_leave_and_then_the_largest_stays_also_on_update():
    on = mesh(2, 4)
    params, specs = laid_out(on, P(("a", "b")))
    with export.maybe_enable_dtensor_export_on(on):
        with raised(
            ValueError, "dimension 0", "'a' of size 2", "'b' of size 4", "allow_multi_axis_sharding_consolidation"
        ):
            module(params, specs)
        for flag in ("allow_multi_axis_sharding_conslidation", "allow_multi_axis_sharding_consolidation"):
            made = module(params, specs, **{flag: True})
            made.update_variables({name: value + 1 for name, value in params.items()})
            value = made.tf_var_leaves[1].read_value()
            assert tf.experimental.dtensor.fetch_layout(value).sharding_specs == ["b", "unsharded"]
            np.testing.assert_array_equal(tf.experimental.dtensor.unpack(value)[1].numpy(), PARAMS["kernel"][2:4] + 1)


@check
def e27_what_cannot_be_laid_out_is_named():
    on = mesh(8)
    whole = {name: jnp.asarray(value) for name, value in PARAMS.items()}
    with export.maybe_enable_dtensor_export_on(on):
        with raised(ValueError, "dimension 1", "size 4", "'a' of size 8"):
            module(whole, {"kernel": P(None, "a"), "bias": P()})
        with raised(ValueError, "dimension 0", "'z'"):
            module(whole, {"kernel": P("z"), "bias": P()})
        with raised(TypeError, "dimension 0", "UNCONSTRAINED"):
            module(whole, {"kernel": P(P.UNCONSTRAINED), "bias": P()})
        with raised(ValueError, "more entries"):
            module(whole, {"kernel": P(), "bias": P(None, None)})


@check
def e27_a_mesh_of_reordered_devices_keeps_its_order():
    on = Mesh(np.array(jax.devices()[:4])[::-1], ("a",))
    array = jax.device_put(PARAMS["kernel"], NamedSharding(on, P("a")))
    tensor = dtensor_utils.jax_array_to_dtensor(array, P("a"), dtensor_utils.jax_mesh_to_dtensor_mesh(on), on)
    for index, shard in enumerate(tf.experimental.dtensor.unpack(tensor)):
        np.testing.assert_array_equal(shard.numpy(), PARAMS["kernel"][2 * index : 2 * index + 2])


@check
def e27_a_mesh_is_found_for_an_array():
    """E27: its own, or one like the DTensor mesh; laid out anew where the spec says so."""
    on = mesh(4, 2)
    dmesh = dtensor_utils.jax_mesh_to_dtensor_mesh(on)
    kernel = PARAMS["kernel"]
    reordered = Mesh(on.devices[::-1], on.axis_names)
    arrays = {
        "own": jax.device_put(kernel, NamedSharding(on, P("a", "b"))),
        "reordered": jax.device_put(kernel, NamedSharding(reordered, P("a"))),
        "another mesh": jax.device_put(kernel, NamedSharding(mesh(8), P("a"))),
        "no mesh": jnp.asarray(kernel),
        "numpy": kernel,
    }
    for name, array in arrays.items():
        for spec, wanted in ((P("a", "b"), ["a", "b"]), (P("a"), ["a", "unsharded"]), (None, ["unsharded"] * 2)):
            tensor = dtensor_utils.jax_array_to_dtensor(array, spec, dmesh)
            assert tf.experimental.dtensor.fetch_layout(tensor).sharding_specs == wanted, name
            np.testing.assert_array_equal(
                tf.experimental.dtensor.relayout(
                    tensor, tf.experimental.dtensor.Layout.replicated(dmesh, rank=2)
                ).numpy(),
                kernel,
                err_msg=name,
            )
    with raised(ValueError, "dimension 0", "several axes"):
        dtensor_utils.jax_array_to_dtensor(kernel, P(("a", "b")), dmesh)
    tensor = dtensor_utils.jax_array_to_dtensor(
        kernel, P(("a", "b")), dmesh, allow_multi_axis_sharding_consolidation=True
    )
    assert tf.experimental.dtensor.fetch_layout(tensor).sharding_specs == ["a", "unsharded"]


def outcome(function):
    try:
        function()
    except Exception:
        return traceback.format_exc(limit=-3)
    return "ok"


def other_clients():
    """E25: numbers of DTensor clients and JAX processes differ."""
    dtensor = tf.experimental.dtensor
    asked, dtensor.num_clients = dtensor.num_clients, lambda: 2
    try:
        with raised(RuntimeError, "2 DTensor clients", "1 JAX processes"):
            export.initialize_dtensor()
    finally:
        dtensor.num_clients = asked
    assert not export.dtensor_initialized()


def again():
    """E25: a second start after the shutdown."""
    export.initialize_dtensor()
    assert export.dtensor_initialized()
    e27_a_mesh_of_reordered_devices_keeps_its_order()
    export.shutdown_dtensor()


def late():
    """E25: once TensorFlow has run, a start takes a new context."""
    tf.constant(1.0) + tf.constant(1.0)
    for kind in (RuntimeError, ValueError):
        with raised(kind, "reset_context=True"):
            export.initialize_dtensor()
    assert not export.dtensor_initialized()
    export.initialize_dtensor(reset_context=True)
    e26_variables_are_laid_out_by_their_specs()


def life_cycle():
    """E25: before, during and after."""
    assert not export.dtensor_initialized()
    with raised(RuntimeError, "not initialized"):
        export.shutdown_dtensor()
    with export.maybe_enable_dtensor_export_on(mesh(8)):
        assert export.get_current_mesh() is None


if __name__ == "__main__":
    if sys.argv[2:] == ["late"]:
        print(json.dumps({"e25_late": outcome(late)}))
        sys.exit()
    outcomes = {"e25_nothing_happens_before_the_start": outcome(life_cycle)}
    outcomes["e25_other_clients"] = outcome(other_clients)
    export.initialize_dtensor()
    outcomes |= {function.__name__: outcome(function) for function in CHECKS}
    outcomes["e25_shutdown"] = outcome(export.shutdown_dtensor)
    outcomes["e25_after_shutdown"] = outcome(life_cycle)
    outcomes["e25_again"] = outcome(again)
    print(json.dumps(outcomes))
