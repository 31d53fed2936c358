"""What the errors of an export say of a mistake: where it is, and what was found. TensorFlow is not needed for any."""

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

ROWS = {  # a mistake: how it is made, and the parts of its error that depend on it
    "a target that no format has": (
        lambda: save(({}, same), "m", inputs=(2,), target="1.9.0"),
        {"found": "target='1.9.0', formats=['stablehlo']"},
    ),
    "methods without signatures": (
        lambda: save(({}, same), "m", inputs=(2,), methods=["encode"]),
        {"found": "methods=['encode']"},
    ),
    "methods that share inputs": (
        lambda: save(({}, same), "m", inputs=(2,), methods={"a": "f", "b": "g"}),
        {"found": "methods ['a', 'b'], inputs (2,)"},
    ),
    "an unknown format": (lambda: formats_of("onx"), {"found": "'onx'"}),
    "no format": (lambda: formats_of([]), {"found": "formats=[]"}),
    "an unknown platform": (lambda: known_platforms(("cpu", "gpuu")), {"found": "'gpuu'"}),
    "no platform": (lambda: known_platforms(()), {"found": "platforms=()"}),
    "no model": (lambda: program_of(3, (2,)), {"found": "an int"}),
    "no such method": (lambda: program_of(Net(), (2,), method="encode"), {"at": "Net", "found": "method='encode'"}),
    "a method itself": (
        lambda: program_of(Net(), (2,), method=abs),
        {"at": "Net", "found": "a builtin_function_or_method"},
    ),
    "a batch of two": (
        lambda: program_of(Net(), (2,), state=plait.Cache, state_batch="batch"),
        {"at": "count", "found": "shape (2, 3), and state_batch='batch'"},
    ),
    "changes of two kinds": (
        lambda: export_program(program_of(Net(), (2,)), ("cpu",)),
        {
            "at": "count, mean",
            "found": "changes of 2 variables: BatchStat, Cache",
            "do": "call model.eval() before the export; or state=(plait.BatchStat, plait.Cache) makes them inputs and "
            "outputs, and frozen=(plait.BatchStat, plait.Cache) discards the changes",
        },
    ),
    "changes of one kind": (
        lambda: export_program(program_of(Net(), (2,), state=plait.Cache), ("cpu",)),
        {"at": "mean", "found": "changes of 1 variables: BatchStat"},
    ),
    "different weights": (
        lambda: shared_weights({"a": program({"w": jnp.ones(2)}), "b": program({"w": jnp.zeros(2)})}),
        {"at": "w", "found": "values in the signature 'b' that differ from those of an earlier one"},
    ),
    "no output": (lambda: named_outputs({"a": ()}), {"found": "{'a': ()}"}),
    "two outputs of one name": (
        lambda: named_outputs({"a": {"b": 1.0}, "a_b": 2.0}),
        {"at": "a_b", "found": "'a_b', of an output and of an output"},
    ),
    "two inputs of one name": (
        lambda: resolve_input_specs([InputSpec((2,), name="a")] * 2),
        {"at": "a", "found": "'a', of input 0 and of input 1"},
    ),
    "an input without a shape": (lambda: resolve_input_specs({"a": "text"}), {"at": "a", "found": "a str"}),
    "a shape that is a string": (
        lambda: InputSpec("batch", name="a"),
        {"at": "InputSpec 'a'", "found": "shape='batch'"},
    ),
    "a size of zero": (lambda: InputSpec((0, 2), name="a"), {"at": "InputSpec 'a'", "found": "0 in shape=(0, 2)"}),
    "a dtype of objects": (
        lambda: InputSpec((2,), dtype="object", name="a"),
        {"at": "InputSpec 'a'", "found": "dtype='object'"},
    ),
    "a name that is a keyword": (lambda: InputSpec((2,), name="class"), {"found": "name='class'"}),
    "64 bits": (
        lambda: resolve_input_specs(InputSpec((2,), dtype="int64", name="a")),
        {"at": "InputSpec 'a'", "found": "dtype='int64'", "expected": "'int32', which the model gets here"},
    ),
    "inputs in neither order": (
        lambda: program_of(({}, lambda p, a, b: a), {"b": (2,), "c": (2,)}),
        {"at": "b", "found": "inputs b, c"},
    ),
    "a random key": (
        lambda: program({"a": [jax.random.key(0)]}),
        {"at": "a.0", "found": "a random key of dtype key<fry>"},
    ),
    "an array of another kind": (
        lambda: program({"a": [np.array(["text"])]}),
        {"at": "a.0", "found": "an array of dtype <U4"},
    ),
    "a parameter that is a string": (lambda: program({"a": ["text"]}), {"at": "a.0", "found": "a str"}),
    "a transform around": (
        lambda: jax.jit(lambda w: [*program({"w": w}).weights])(1.0),
        {"at": "w", "found": "a traced array"},
    ),
    "two parameters of one name": (
        lambda: program({"a": {"b": 1.0}, "a.b": 2.0}),
        {"at": "a.b", "found": "'a.b', of ['a']['b'] and of ['a.b']"},
    ),
    "a callback": (lambda: lowered(calling, jnp.ones(2)), {"found": "pure_callback"}),
    "a model that raises": (
        lambda: export_program(program_of(({}, raising), (2,)), ("cpu",)),
        {"found": "ValueError: no"},
    ),
    "nothing at the path": (lambda: describe_exports("nowhere"), {"at": "nowhere", "found": "nothing"}),
    "another file": (lambda: describe_exports("file.txt"), {"at": "file.txt", "found": "a file of a different format"}),
    "another folder": (lambda: describe_exports("folder"), {"at": "folder", "found": "a folder"}),
    "an unknown kind": (lambda: validate_export("torch", "m", 1, 1), {"found": "'torch'"}),
    "fewer outputs": (lambda: validate_export("onnx", "m", [1, 2], [1]), {"found": "1 outputs"}),
    "inputs of other names": (lambda: example(y=1), {"found": "arrays y"}),
    "sizes that differ": (
        lambda: example(x=np.ones((3, 2), F32), z=np.ones((2, 2), F32)),
        {"at": "z", "found": "float32[2, 2] with batch=3"},
    ),
    "another dtype": (lambda: example(x=np.ones((3, 2), int), z=1), {"at": "x", "found": "int64[3, 2] with batch=3"}),
    "no operation is refused": (
        lambda: raised(refusal("cannot", ValueError("no"), [], expected="ops")),
        {"found": "ValueError: no; each operation alone is supported"},
    ),
    "a line of many says why": (
        lambda: raised(refusal("cannot", ValueError("\n at f\nf.py:3: error: no such op\nend"), [], expected="ops")),
        {"found": "ValueError: no such op; each operation alone is supported"},
    ),
    "no operation, fixed sizes": (
        lambda: raised(refusal("cannot", ValueError("no"), [], expected="ops", free=False)),
        {"found": "ValueError: no; each operation alone is supported"},
    ),
    "many operations are refused": (
        lambda: raised(refusal("cannot", None, SINES, expected="ops")),
        {
            "at": "layers[0]",
            "found": "\n            ".join([f"sin in layers[{n}], head: E: no" for n in range(12)] + ["and 2 more"]),
        },
    ),
    "a sum into places": (
        lambda: rewritten(lambda x: x.at[jnp.array([0, 0])].add(1.0), FOR_LITERT)(jnp.ones(3)),
        {"found": "the operation scatter-add"},
    ),
    "a name with a slash": (
        lambda: save(({}, same), "m", inputs=(2,), methods={"a/b": "encode"}),
        {"found": "'a/b' in methods"},
    ),
    "a variable that cannot be saved": (
        lambda: check_savable({"a": "a b"}),
        {"at": "a", "found": "the variable name 'a b'"},
    ),
    "a quotient of sizes": (
        lambda: every_size("floordiv(b, 2)", {"b": (4,)}),
        {"found": "input_polymorphic_shape='floordiv(b, 2)'"},
    ),
    "sizes of other names": (
        lambda: every_size("b, n", {"b": (4,)}),
        {"found": "input_polymorphic_shape_symbol_values={'b': (4,)}"},
    ),
    "no sizes": (
        lambda: every_size("b, n", {"b": (4,), "n": ()}),
        {"at": "input_polymorphic_shape_symbol_values['n']", "found": "()"},
    ),
    "a spec that is too long": (
        lambda: axes(4, spec=("a", None)),
        {"found": f"{PartitionSpec('a', None)} for the shape (4,)"},
    ),
    "a spec with a number": (lambda: axes(4, 4, spec=(None, ("a", 3))), {"at": "dimension 1", "found": "('a', 3)"}),
    "a spec with an unknown axis": (lambda: axes(4, 4, spec=(None, "c")), {"at": "dimension 1", "found": "'c'"}),
    "a spec with two axes": (
        lambda: axes(8, 4, spec=(("a", "b"),)),
        {"at": "dimension 0", "found": "the axis 'a' of size 2 and the axis 'b' of size 4"},
    ),
    "a size that an axis does not divide": (
        lambda: axes(8, 6, spec=(None, "b")),
        {"at": "dimension 1", "found": "size 6, and the axis 'b' of size 4"},
    ),
}


@pytest.fixture(autouse=True)
def _where_there_are_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize("name", ROWS)
def test_an_error_tells_where_and_what(name):
    function, parts = ROWS[name]
    with pytest.raises(PlaitError) as caught:
        function()
    assert parts.items() <= caught.value.parts.items()
    assert {"found", "expected", "do"} <= set(caught.value.parts)
