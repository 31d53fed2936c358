"""What the errors of an export say, in full: each value, and the advice. TensorFlow is not needed for any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import plait
from plait.errors import PlaitError
from plait.export import InputSpec, describe_exports, save, validate_export
from plait.export.dtensor_utils import spec_axes
from plait.export.formats.table import formats_of
from plait.export.program.input_spec import resolve_input_specs
from plait.export.program.lowering import export_program, known_platforms, lowered
from plait.export.program.program import named_outputs, program_of, shared_weights
from plait.export.program.rewriting import FOR_LITERT, rewritten
from plait.export.program.unsupported import Operation, refusal
from plait.export.proof.prove import check_example
from plait.export.tensorflow.names import check_savable
from plait.export.tensorflow.size_variants import every_size


class Net(plait.Module):
    def __init__(self):
        self.count, self.mean = plait.Cache(jnp.zeros((2, 3))), plait.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        self.count[...] += 1
        self.mean[...] += 1
        return x


def same(params, x):
    return x


def program(params):
    return program_of((params, same), (2,))


def calling(x):
    return jax.pure_callback(np.sin, x, x)


def raising(params, x):
    raise ValueError("no")


def example(**arrays):
    names = {"x": ["batch", 2], "z": ["batch", 2]}
    check_example(arrays, [{"name": name, "dtype": "float32", "shape": shape} for name, shape in names.items()])


def axes(*shape, spec, **options):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    return spec_axes(shape, PartitionSpec(*spec), mesh, **{"consolidate": False, **options})


def raised(error):
    raise error


F32 = np.float32
SINES = [Operation("sin", (f"layers[{n}]", "head"), "E: no") for n in range(14)]

ROWS = {  # a mistake: how it is made, the first line of its error, and the others
    "a target that no format has": (
        lambda: save(({}, same), "m", inputs=(2,), target="1.9.0"),
        "target applies only to a SavedModel",
        {
            "found": "target='1.9.0', formats=['stablehlo']",
            "expected": "the format 'saved_model', or no target",
            "do": "add 'saved_model' to the formats, or omit target",
        },
    ),
    "methods without signatures": (
        lambda: save(({}, same), "m", inputs=(2,), methods=["encode"]),
        "methods must be a dictionary by signature",
        {"found": "methods=['encode']", "expected": "a dictionary", "do": "methods={'serving_default': '__call__'}"},
    ),
    "methods that share inputs": (
        lambda: save(({}, same), "m", inputs=(2,), methods={"a": "f", "b": "g"}),
        "each signature needs a method and its inputs",
        {
            "found": "methods ['a', 'b'], inputs (2,)",
            "expected": "two dictionaries with the same signatures",
            "do": "methods={'encode': 'encode', 'decode': 'decode'}, inputs={'encode': ..., 'decode': ...}",
        },
    ),
    "an unknown format": (
        lambda: formats_of("onx"),
        "there is no export format of this name",
        {
            "found": "'onx'",
            "expected": "some of 'stablehlo', 'saved_model', 'onnx', 'litert'",
            "do": "plait.export.save(model, path, formats=['stablehlo', 'onnx'], inputs=('batch', 8))",
        },
    ),
    "no format": (
        lambda: formats_of([]),
        "an export needs a format",
        {
            "found": "formats=[]",
            "expected": "at least one",
            "do": "plait.export.save(model, path, formats=['stablehlo', 'onnx'], inputs=('batch', 8))",
        },
    ),
    "an unknown platform": (
        lambda: known_platforms(("cpu", "gpuu")),
        "there is no platform of this name",
        {
            "found": "'gpuu'",
            "expected": "some of 'cpu', 'cuda', 'rocm', 'tpu'",
            "do": "platforms=('cpu', 'cuda'), or omit it",
        },
    ),
    "no platform": (
        lambda: known_platforms(()),
        "an export needs a platform to run on",
        {"found": "platforms=()", "expected": "at least one", "do": "platforms=('cpu', 'cuda'), or omit it"},
    ),
    "no model": (
        lambda: program_of(3, (2,)),
        "an export takes a model",
        {
            "found": "an int",
            "expected": "a module, or a pair (params, function) of a pure function(params, *inputs)",
            "do": "plait.export.save(model, path, formats=['stablehlo'], inputs=plait.export.InputSpec(('batch', 8)))",
        },
    ),
    "no such method": (
        lambda: program_of(Net(), (2,), method="encode"),
        "the model has no such method",
        {
            "at": "Net",
            "found": "method='encode'",
            "expected": "the name of a method",
            "do": "define Net.encode, or pass the name of an existing method",
        },
    ),
    "a method itself": (
        lambda: program_of(Net(), (2,), method=abs),
        "a method must be given by its name",
        {
            "at": "Net",
            "found": "a builtin_function_or_method",
            "expected": "the name of a method",
            "do": "methods={'encode': 'encode'}",
        },
    ),
    "a batch of two": (
        lambda: program_of(Net(), (2,), state=plait.Cache, state_batch="batch"),
        "a state whose batch size is free begins with a batch of 1",
        {
            "at": "count",
            "found": "shape (2, 3), and state_batch='batch'",
            "expected": "shape (1, 3)",
            "do": "plait.view(model, decode=True, batch_size=1, max_length=...), or omit state_batch",
        },
    ),
    "changes of two kinds": (
        lambda: export_program(program_of(Net(), (2,)), ("cpu",)),
        "the exported function changes variables of the model",
        {
            "at": "count, mean",
            "found": "changes of 2 variables: BatchStat, Cache",
            "expected": "a function without changes, or state= or frozen= for them",
            "do": "export model.eval(); or state=(plait.BatchStat, plait.Cache) makes them inputs and outputs, and "
            "frozen=(plait.BatchStat, plait.Cache) discards the changes",
        },
    ),
    "changes of one kind": (
        lambda: export_program(program_of(Net(), (2,), state=plait.Cache), ("cpu",)),
        "the exported function changes variables of the model",
        {
            "at": "mean",
            "found": "changes of 1 variables: BatchStat",
            "expected": "a function without changes, or state= or frozen= for them",
            "do": "export model.eval(); or state=plait.BatchStat makes them inputs and outputs, and "
            "frozen=plait.BatchStat discards the changes",
        },
    ),
    "different weights": (
        lambda: shared_weights({"a": program({"w": jnp.ones(2)}), "b": program({"w": jnp.zeros(2)})}),
        "two signatures have different weights under one name",
        {
            "at": "w",
            "found": "values in the signature 'b' that differ from those of an earlier one",
            "expected": "functions of one model",
            "do": "export them to two folders",
        },
    ),
    "no output": (
        lambda: named_outputs({"a": ()}),
        "the exported function returns nothing",
        {"found": "{'a': ()}", "expected": "at least one array", "do": "return the arrays that the file should return"},
    ),
    "two outputs of one name": (
        lambda: named_outputs({"a": {"b": 1.0}, "a_b": 2.0}),
        "two inputs or outputs of an export have the same name",
        {
            "at": "a_b",
            "found": "'a_b', of an output and of an output",
            "expected": "different names",
            "do": "name the inputs: InputSpec(shape, name='tokens'), and return outputs in a dictionary",
        },
    ),
    "two inputs of one name": (
        lambda: resolve_input_specs([InputSpec((2,), name="a")] * 2),
        "two inputs have the same name",
        {
            "at": "a",
            "found": "'a', of input 0 and of input 1",
            "expected": "different names",
            "do": "InputSpec(shape, name='tokens')",
        },
    ),
    "an input without a shape": (
        lambda: resolve_input_specs({"a": "text"}),
        "an input of an export needs a shape and a dtype",
        {
            "at": "a",
            "found": "a str",
            "expected": "an InputSpec, a tuple of sizes (float32), or an example array",
            "do": 'InputSpec(("batch", 128), dtype="int32", name="tokens")',
        },
    ),
    "a shape that is a string": (
        lambda: InputSpec("batch", name="a"),
        "an input shape must be a tuple of sizes",
        {
            "at": "InputSpec 'a'",
            "found": "shape='batch'",
            "expected": "integers for fixed sizes, names for dynamic ones",
            "do": 'InputSpec(("batch", 8, 8, 1))',
        },
    ),
    "a size of zero": (
        lambda: InputSpec((0, 2), name="a"),
        "a size of an input shape must be a positive number or a name",
        {
            "at": "InputSpec 'a'",
            "found": "0 in shape=(0, 2)",
            "expected": "positive integers for fixed sizes, identifiers such as 'batch' for dynamic ones",
            "do": 'InputSpec(("batch", 8, 8, 1))',
        },
    ),
    "a dtype of objects": (
        lambda: InputSpec((2,), dtype="object", name="a"),
        "an input cannot have this dtype",
        {
            "at": "InputSpec 'a'",
            "found": "dtype='object'",
            "expected": "a dtype of numbers or bool that JAX has",
            "do": 'InputSpec(("batch", 128), dtype="int32")',
        },
    ),
    "a name that is a keyword": (
        lambda: InputSpec((2,), name="class"),
        "an input's name must be a valid keyword argument",
        {
            "found": "name='class'",
            "expected": "a Python identifier that is not a keyword",
            "do": 'InputSpec(shape, name="x")',
        },
    ),
    "64 bits": (
        lambda: resolve_input_specs(InputSpec((2,), dtype="int64", name="a")),
        "JAX has 64-bit dtypes only with jax_enable_x64",
        {
            "at": "InputSpec 'a'",
            "found": "dtype='int64'",
            "expected": "'int32', which the model gets here",
            "do": "InputSpec(..., dtype='int32'), or jax.config.update('jax_enable_x64', True) first",
        },
    ),
    "inputs in neither order": (
        lambda: program_of(({}, lambda p, a, b: a), {"b": (2,), "c": (2,)}),
        "the inputs match the arguments of the function neither by name nor by order",
        {
            "at": "b",
            "found": "inputs b, c",
            "expected": "arguments a, b",
            "do": "name the inputs like the arguments, or pass them in a list, in order, as InputSpec(..., name=...)",
        },
    ),
    "a random key": (
        lambda: program({"a": [jax.random.key(0)]}),
        "a parameter is not an array",
        {
            "at": "a.0",
            "found": "a random key of dtype key<fry>",
            "expected": "arrays of numbers",
            "do": "remove everything else, also random keys: plait.split(model, plait.Param, ...)",
        },
    ),
    "an array of another kind": (
        lambda: program({"a": [np.array(["text"])]}),
        "a parameter is not an array",
        {
            "at": "a.0",
            "found": "an array of dtype <U4",
            "expected": "arrays of numbers",
            "do": "remove everything else, also random keys: plait.split(model, plait.Param, ...)",
        },
    ),
    "a parameter that is a string": (
        lambda: program({"a": ["text"]}),
        "a parameter is not an array",
        {
            "at": "a.0",
            "found": "a str",
            "expected": "arrays of numbers",
            "do": "remove everything else, also random keys: plait.split(model, plait.Param, ...)",
        },
    ),
    "a transform around": (
        lambda: jax.jit(lambda w: [*program({"w": w}).weights])(1.0),
        "a model cannot be exported inside a JAX transform",
        {
            "at": "w",
            "found": "a traced array",
            "expected": "an array with numbers",
            "do": "export outside of jit, grad, vmap and scan",
        },
    ),
    "two parameters of one name": (
        lambda: program({"a": {"b": 1.0}, "a.b": 2.0}),
        "two parameters would have the same name in the file",
        {
            "at": "a.b",
            "found": "'a.b', of ['a']['b'] and of ['a.b']",
            "expected": "different names",
            "do": "rename one of them; nested keys are joined by dots",
        },
    ),
    "a callback": (
        lambda: lowered(calling, jnp.ones(2)),
        "the model has Python callbacks, which cannot be exported",
        {
            "found": "pure_callback",
            "expected": "only JAX operations",
            "do": "remove jax.debug.print, io_callback and pure_callback from the exported method",
        },
    ),
    "a model that raises": (
        lambda: export_program(program_of(({}, raising), (2,)), ("cpu",)),
        "the model cannot be exported with these inputs",
        {
            "found": "ValueError: no",
            "expected": "shapes and control flow that depend on the shapes of the inputs, not on their values",
            "do": "fix the sizes that the message names in InputSpec, or use jnp.where, plait.cond and masks",
        },
    ),
    "nothing at the path": (
        lambda: describe_exports("nowhere"),
        "there is no export at this path",
        {
            "at": "nowhere",
            "found": "nothing",
            "expected": "a file or folder of StableHLO, TensorFlow SavedModel, ONNX, LiteRT, or a folder of them",
            "do": "plait.export.save(model, path, formats=['stablehlo'], inputs=('batch', 8))",
        },
    ),
    "another file": (
        lambda: describe_exports("file.txt"),
        "there is no export at this path",
        {
            "at": "file.txt",
            "found": "a file of a different format",
            "expected": "a file or folder of StableHLO, TensorFlow SavedModel, ONNX, LiteRT, or a folder of them",
            "do": "plait.export.save(model, path, formats=['stablehlo'], inputs=('batch', 8))",
        },
    ),
    "another folder": (
        lambda: describe_exports("folder"),
        "there is no export at this path",
        {
            "at": "folder",
            "found": "a folder",
            "expected": "a file or folder of StableHLO, TensorFlow SavedModel, ONNX, LiteRT, or a folder of them",
            "do": "plait.export.save(model, path, formats=['stablehlo'], inputs=('batch', 8))",
        },
    ),
    "an unknown kind": (
        lambda: validate_export("torch", "m", 1, 1),
        "there is no export of this kind",
        {
            "found": "'torch'",
            "expected": "some of 'stablehlo', 'saved_model', 'onnx', 'litert'",
            "do": "validate_export('stablehlo', path, x, y)",
        },
    ),
    "fewer outputs": (
        lambda: validate_export("onnx", "m", [1, 2], [1]),
        "each input needs its expected output",
        {"found": "1 outputs", "expected": "2 outputs", "do": "validate_export(kind, path, [x1, x2], [y1, y2])"},
    ),
    "inputs of other names": (
        lambda: example(y=1),
        "the inputs do not match the export's signature",
        {"found": "arrays y", "expected": "arrays x, z", "do": "np.savez('data.npz', x=..., z=...)"},
    ),
    "sizes that differ": (
        lambda: example(x=np.ones((3, 2), F32), z=np.ones((2, 2), F32)),
        "an input does not fit the export",
        {
            "at": "z",
            "found": "float32[2, 2] with batch=3",
            "expected": "float32[batch, 2]",
            "do": "pass an array of this shape, or array.astype('float32')",
        },
    ),
    "another dtype": (
        lambda: example(x=np.ones((3, 2), int), z=1),
        "an input does not fit the export",
        {
            "at": "x",
            "found": "int64[3, 2] with batch=3",
            "expected": "float32[batch, 2]",
            "do": "pass an array of this shape, or array.astype('float32')",
        },
    ),
    "no operation is refused": (
        lambda: raised(refusal("cannot", ValueError("no"), [], expected="ops")),
        "cannot",
        {
            "found": "ValueError: no; each operation alone is supported",
            "expected": "ops",
            "do": "fix the sizes of the inputs in InputSpec, or export to another format",
        },
    ),
    "a line of many says why": (
        lambda: raised(refusal("cannot", ValueError("\n at f\nf.py:3: error: no such op\nend"), [], expected="ops")),
        "cannot",
        {
            "found": "ValueError: no such op; each operation alone is supported",
            "expected": "ops",
            "do": "fix the sizes of the inputs in InputSpec, or export to another format",
        },
    ),
    "no operation, fixed sizes": (
        lambda: raised(refusal("cannot", ValueError("no"), [], expected="ops", free=False)),
        "cannot",
        {
            "found": "ValueError: no; each operation alone is supported",
            "expected": "ops",
            "do": "export to another format; StableHLO has all operations",
        },
    ),
    "many operations are refused": (
        lambda: raised(refusal("cannot", None, SINES, expected="ops")),
        "cannot",
        {
            "at": "layers[0]",
            "found": "\n            ".join([f"sin in layers[{n}], head: E: no" for n in range(12)] + ["and 2 more"]),
            "expected": "ops",
            "do": "replace these operations in the named layers, or export to another format; StableHLO has all of "
            "them",
        },
    ),
    "a sum into places": (
        lambda: rewritten(lambda x: x.at[jnp.array([0, 0])].add(1.0), FOR_LITERT)(jnp.ones(3)),
        "LiteRT's interpreter cannot run the converted form of an operation",
        {
            "found": "the operation scatter-add",
            "expected": "LiteRT's built-in operations",
            "do": "write the sum as a product with a matrix of zeros and ones, or export to another format",
        },
    ),
    "a name with a slash": (
        lambda: save(({}, same), "m", inputs=(2,), methods={"a/b": "encode"}),
        "the name of a signature is part of a file's name",
        {
            "found": "'a/b' in methods",
            "expected": "a string without / \\ : that does not start with a dot",
            "do": "methods={'encode': 'encode'}",
        },
    ),
    "a variable that cannot be saved": (
        lambda: check_savable({"a": "a b"}),
        "TensorFlow cannot save a variable with this name",
        {
            "at": "a",
            "found": "the variable name 'a b'",
            "expected": "a letter, digit or dot first, then letters, digits and any of _ . / > -",
            "do": "rename the parameter",
        },
    ),
    "a quotient of sizes": (
        lambda: every_size("floordiv(b, 2)", {"b": (4,)}),
        "a size that is a quotient or a remainder cannot be listed",
        {
            "found": "input_polymorphic_shape='floordiv(b, 2)'",
            "expected": "names, and their sums, products, max and min",
            "do": "give the size a separate name, with its own values",
        },
    ),
    "sizes of other names": (
        lambda: every_size("b, n", {"b": (4,)}),
        "input_polymorphic_shape_symbol_values does not match input_polymorphic_shape",
        {
            "found": "input_polymorphic_shape_symbol_values={'b': (4,)}",
            "expected": "values for 'b', 'n'",
            "do": 'input_polymorphic_shape="b, ...", input_polymorphic_shape_symbol_values={"b": (1, 8)}',
        },
    ),
    "no sizes": (
        lambda: every_size("b, n", {"b": (4,), "n": ()}),
        "the values of a size are not sizes",
        {
            "at": "input_polymorphic_shape_symbol_values['n']",
            "found": "()",
            "expected": "a sequence of different whole numbers",
            "do": "input_polymorphic_shape_symbol_values={'b': (1, 8)}",
        },
    ),
    "a spec that is too long": (
        lambda: axes(4, spec=("a", None)),
        "a partition spec has more entries than the array has dimensions",
        {
            "found": f"{PartitionSpec('a', None)} for the shape (4,)",
            "expected": "at most 1 entries",
            "do": "give each array its own spec in pspecs",
        },
    ),
    "a spec with a number": (
        lambda: axes(4, 4, spec=(None, ("a", 3))),
        "a partition spec has an entry that is not an axis",
        {
            "at": "dimension 1",
            "found": "('a', 3)",
            "expected": "None, the name of a mesh axis, or a tuple of names",
            "do": "jax.P('data', None)",
        },
    ),
    "a spec with an unknown axis": (
        lambda: axes(4, 4, spec=(None, "c")),
        "a partition spec names an axis that the mesh does not have",
        {
            "at": "dimension 1",
            "found": "'c'",
            "expected": "some of 'a', 'b'",
            "do": "use the axis names of the mesh that the context was made for",
        },
    ),
    "a spec with two axes": (
        lambda: axes(8, 4, spec=(("a", "b"),)),
        "a dimension is sharded over several axes, which DTensor does not support",
        {
            "at": "dimension 0",
            "found": "the axis 'a' of size 2 and the axis 'b' of size 4",
            "expected": "one axis, unless the others may be dropped",
            "do": "JaxModule(..., allow_multi_axis_sharding_consolidation=True) keeps the largest axis",
        },
    ),
    "a size that an axis does not divide": (
        lambda: axes(8, 6, spec=(None, "b")),
        "a dimension cannot be divided among the devices of its axis",
        {
            "at": "dimension 1",
            "found": "size 6, and the axis 'b' of size 4",
            "expected": "a multiple of the axis size",
            "do": "do not shard the dimension: None in its place in the spec",
        },
    ),
}


@pytest.fixture(autouse=True)
def _where_there_are_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize("name", ROWS)
def test_an_error_tells_where_what_and_what_to_do(name):
    function, message, parts = ROWS[name]
    with pytest.raises(PlaitError) as caught:
        function()
    assert (caught.value.message, caught.value.parts) == (message, parts)
