"""Mistakes with variables: metadata, names, references."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    MetadataError,
    MetadataKeyError,
    ReplacedVariableWarning,
    ShapeError,
    VariableAttributeError,
)

from .rows import Row

VARIABLE = "variable = plait.Param(x, note='a'); value = 1.0\n"

ROWS = {
    "a value of another shape": Row(
        "variable[...] = jnp.ones(7)",
        ShapeError,
        setup=VARIABLE + "value = jnp.ones(7)",
        fix="variable.value = value",
        text="""
            a value cannot be broadcast to the part of a variable that it is assigned to
              at        a Param[...]
              found     an array of shape (7,): Incompatible types for broadcasting: input type=float32[7] and
                        requested type=float32[4,2]
              expected  an array that broadcasts to that part of an array of shape (4, 2)
              do        to change the shape of the variable, write variable.value = value
        """,
    ),
    "a part of another shape": Row("model.layers[0].kernel[0] = jnp.ones(7)", ShapeError,
        (r"at +model\.layers\[0\]\.kernel\[0\]",
        r"found +an array of shape \(7,\)", r"of an array of shape \(2, 2\)")),
    "an array for a variable": Row("model.layers[0].bias = jnp.ones(2)", ReplacedVariableWarning,
        (r"at +model\.layers\[0\]\.bias", "a Param was replaced by an array",
        "found +an array, which no filter by type selects: an optimizer does not updat")),
    "an array for a variable, made anew": Row("model.layers[0].bias = jnp.ones(2)", ReplacedVariableWarning,
        ("a Param was replaced by an array",
        r"at +model\.layers\[0\]\.bias", "found +an array, which no filter by type selects")),
    "a name that is taken": Row("plait.register_variable_name('params', Scale)", ArgumentError,
        "Scale, for a name that belongs to Param", setup="class Scale(plait.Variable): pass"),
    "a name that is unknown": Row("plait.variable_type_from_name('scales')", ArgumentError, "the name 'scales'"),
    "a class without a name": Row("plait.variable_name_from_type(Scale)", ArgumentError,
        ("the class Scale has no variable name", "found +Scale"), setup="class Scale(plait.Variable): pass"),
    "an attribute that is not there": Row("variable.scale", VariableAttributeError,
        ("a Param has no attribute 'scale'",
        "found +neither metadata of that name nor an attribute of the value, of type A"),
        setup=VARIABLE),
    "an attribute that is assigned": Row("variable.scale = value", VariableAttributeError,
        ("Cannot set attribute 'scale' of a Param", "found +an assignment to an attribute"), setup=VARIABLE),
    "an attribute that is deleted": Row("del variable.note", VariableAttributeError,
        ("cannot delete the attribute 'note'", "found +a deletion of an attribute"), setup=VARIABLE),
    "a default without a name": Row("variable.get_metadata(default=3)", ArgumentTypeError, "a default without a name",
        setup=VARIABLE),
    "a name with exclude_required": Row("variable.get_metadata('note', exclude_required=True)", ArgumentTypeError,
        "found +name='note', exclude_required=True", setup=VARIABLE),
    "metadata that is not there": Row("variable.get_metadata('scale')", MetadataKeyError,
        ("a Param has no metadata 'scale'", r"found +the entries \['eager_sharding', 'hijax', 'note', 'ref'\]"),
        setup=VARIABLE),
    "metadata in no known form": Row("variable.set_metadata(1, 2, 3)", ArgumentTypeError,
        r"found +3 positional arguments and the keywords \[\]", setup=VARIABLE),
    "a flag that is changed": Row("variable.set_metadata(ref=True)", MetadataError,
        ("the flag 'ref' of a Param", "found +True"), setup=VARIABLE),
    "a flag that is deleted": Row("variable.del_metadata('ref')", MetadataError, "found +'deleted'", setup=VARIABLE),
    "a copy of another class": Row("variable.copy_from(other)", MetadataError,
        ("found +a BatchStat", "expected +a Param"), setup=VARIABLE + "other = plait.BatchStat(x)"),
    "a flag given twice": Row("plait.Param(boxed, ref=False)", MetadataError,
        ("at +a Param", "found +ref=False as a keyword, True from the initializer's metadata"),
        setup="boxed = plait.VariableMetadata(x, metadata={'ref': True})"),
    "a reference as the value": Row("plait.Param(jax.new_ref(x))", MetadataError,
        ("a JAX Ref is not allowed as the value of a Param", "found +a value that is, or contains, a JAX Ref")),
    "a leaf of no variable class": Row("plait.VariableState(int, x)", ArgumentTypeError, "type=<class 'int'>"),
    "the old name of out_sharding, read": Row("plait.Param(x, out_sharding=('a', 'b')).sharding_names",
        DeprecationWarning, "use +'out_sharding'"),
    "the old name of out_sharding, as metadata": Row(
        "plait.Param(x, out_sharding=('a', 'b')).get_metadata('sharding')", DeprecationWarning, "use +'out_sharding'"),
    "the old name of out_sharding, written": Row("plait.Param(x, sharding=('a', 'b'))", DeprecationWarning,
        "use +'out_sharding'"),
    "hooks in metadata": Row("plait.Param(x, on_set_value=lambda variable, value: value)", DeprecationWarning,
        "overrides get_value, set_value or create_value",
        setup="from plait.core.variables.variable_metadata import _hooks_warned; _hooks_warned.clear()"),
}  # fmt: skip
