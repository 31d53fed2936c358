"""Layers: each with drawn options, called once or twice, in either mode, alone or under ``jit`` and ``grad``."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import strategies as st

from tests.differential.pen import Draw, Pen
from tests.differential.program import Program
from tests.differential.strategies.models import RNGS

DTYPES = {
    "dtype": ("None", "jnp.bfloat16", "jnp.float16", "jnp.float32"),
    "param_dtype": ("jnp.bfloat16", "jnp.float32", "jnp.float16"),
}
CELL_DTYPES = {"dtype": DTYPES["dtype"], "param_dtype": ("jnp.float32",)}
KERNEL = {
    "use_bias": ("False",), **DTYPES, "kernel_init": ("nnx.initializers.ones", "nnx.initializers.normal(0.5)", "nnx.initializers.he_uniform()"),
    "bias_init": ("nnx.initializers.ones", "nnx.initializers.constant(0.25)"), "precision": ("jax.lax.Precision.HIGHEST",),
    "kernel_metadata": ("{'tag': 'decay'}", "{'note': (1, 2)}", "{'tag': 'x'}"), "bias_metadata": ("{'note': 1}",),
    "preferred_element_type": ("jnp.float32",),
}  # fmt: skip
NORM = {
    "epsilon": ("1e-3", "0.1"), **DTYPES, "use_bias": ("False",), "use_scale": ("False",), "use_fast_variance": ("False",),
    "scale_init": ("nnx.initializers.normal(1.0)",), "bias_init": ("nnx.initializers.ones",), "scale_metadata": ("{'tag': 'decay'}",),
}  # fmt: skip
GENERAL = {name: texts for name, texts in KERNEL.items() if name != "preferred_element_type"}
NO_BIAS = {name: texts for name, texts in NORM.items() if "bias" not in name}
CELL = {
    **CELL_DTYPES,
    "kernel_init": KERNEL["kernel_init"],
    "recurrent_kernel_init": ("nnx.initializers.ones", "nnx.initializers.orthogonal()"),
    "bias_init": KERNEL["bias_init"],
    "carry_init": ("nnx.initializers.ones",),
    "gate_fn": ("nnx.tanh",),
    "activation_fn": ("nnx.relu",),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer: its required arguments, its options, shapes of inputs that fit, and what a call may be given."""

    make: str
    options: dict[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    calls: tuple[str, ...] = ("",)
    rngs: bool = True
    percent: int = 20


LAYERS: dict[str, Row] = {
    "Linear": Row("nnx.Linear({4|4|4|4|4|3}, {2|4}", KERNEL, ("(3, 4)", "(4,)", "(2, 3, 4)", "(0, 4)", "(3, 4)")),
    "LinearGeneral": Row(
        "nnx.LinearGeneral({4|(4,)|(3, 4)}, {2|(2, 3)|(2,)}",
        {**GENERAL, "axis": ("-1", "(-1,)", "(-2, -1)", "(1, 2)", "0"), "batch_axis": ("{0: 2}",)}, ("(3, 4)", "(4,)", "(2, 3, 4)"),
    ),
    "Einsum": Row("nnx.Einsum({'...a,ab->...b', (4, 3), (3,)|'nta,ahd->nthd', (4, 2, 3), (2, 3)|'a,ab->b', (4, 2), None|'ab,bc->ac', (4, 2), 2|'...a,ab->...b', (4, 3), None}", DTYPES, ("(3, 4)", "(4,)", "(2, 3, 4)"), ("", ", '...a,ab->...b'")),
    "Conv": Row(
        "nnx.Conv({4|4|4|4|2}, {4|2|4|4|3}, {(3,)|3|(1,)|(2,)}",
        {**KERNEL, "strides": ("2", "(2,)", "1"), "padding": ("'VALID'", "'CIRCULAR'", "'CAUSAL'", "'REFLECT'", "1", "[(0, 1)]", "'SAME'"), "kernel_dilation": ("2", "(2,)"), "input_dilation": ("2",), "feature_group_count": ("2",), "mask": ("jnp.ones((3, 4, 4))",)},
        ("(2, 5, 4)", "(5, 4)", "(1, 2, 5, 4)"),
    ),
    "Conv2": Row(
        "nnx.Conv({4|4|4|4|2}, {2|4}, {(3, 3)|(1, 2)}",
        {**KERNEL, "strides": ("2", "(2, 1)"), "padding": ("'VALID'", "'CIRCULAR'", "((0, 1), (1, 1))", "(1, 0)"), "kernel_dilation": ("(1, 2)",), "feature_group_count": ("2",)},
        ("(2, 5, 5, 4)", "(5, 5, 4)"),
    ),
    "ConvTranspose": Row(
        "nnx.ConvTranspose({4|4|4|4|2}, {2|4}, {(3,)|3|(2,)}",
        {**KERNEL, "strides": ("2", "(2,)"), "padding": ("'VALID'", "'CIRCULAR'", "'SAME'", "1"), "kernel_dilation": ("2",), "transpose_kernel": ("True",)},
        ("(2, 5, 4)", "(5, 4)"),
    ),
    "Embed": Row("nnx.Embed({3|5|1}, {4|2}", {**DTYPES, "embedding_init": ("nnx.initializers.ones", "nnx.initializers.normal(1.0)"), "embedding_metadata": ("{'tag': 'decay'}",)}, ("int(2, 3)", "int(4,)", "int(2, 3)", "(3, 4)"), ("", "", "attend")),
    "BatchNorm": Row(
        "nnx.BatchNorm({4|4|4|4|4|4|4|4|4|3}", {**NORM, "momentum": ("0.5", "0.0"), "use_running_average": ("True", "False"), "axis": ("-1", "-1", "1"), "axis_name": ("None",)},
        ("(3, 4)", "(2, 3, 4)", "(4, 4)"), ("", "", ", use_running_average=True", ", use_running_average=False", ", mask=jnp.array([[True], [False], [True]])"),
    ),
    "LayerNorm": Row("nnx.LayerNorm({4|4|4|4|4|3}", {**NORM, "reduction_axes": ("-1", "(0, 1)", "-2"), "feature_axes": ("-1", "(-1,)")}, ("(3, 4)", "(2, 3, 4)", "(4,)"), ("", "", ", mask=jnp.array([True, True, False, True])")),
    "RMSNorm": Row("nnx.RMSNorm({4|4|4|4|4|3}", {**NO_BIAS, "reduction_axes": ("-1", "(0, 1)")}, ("(3, 4)", "(2, 3, 4)", "(4,)"), ("", "", ", mask=jnp.array([True, True, False, True])")),
    "GroupNorm": Row("nnx.GroupNorm({4, num_groups=2|4, num_groups=1|4, num_groups=None, group_size=2|4, num_groups=4|4, num_groups=3|4}", {**NORM, "reduction_axes": ("(1, 2)",)}, ("(2, 4)", "(2, 3, 4)")),
    "InstanceNorm": Row("nnx.InstanceNorm({4|4|4|3}", {**NORM}, ("(2, 3, 4)", "(2, 4)", "(2, 2, 2, 4)")),
    "Dropout": Row("nnx.Dropout({0.5|0.0|1.0|0.25}", {"broadcast_dims": ("(0,)", "(-1,)"), "deterministic": ("True", "False"), "rng_collection": ("'noise'", "'dropout'")}, ("(3, 4)", "(2, 3, 4)", "bf16(3, 4)"), ("", "", ", deterministic=True", ", deterministic=False", ", rngs=nnx.Rngs(5)", ", rngs=jax.random.key(3)")),
    "MultiHeadAttention": Row(
        "nnx.MultiHeadAttention({2|1|4|2|2|2|3}, 4", {**GENERAL, "decode": ("False", "False", "True"), "qkv_features": ("8", "4"), "out_features": ("2",), "in_kv_features": ("4",), "dropout_rate": ("0.5",), "deterministic": ("True", "False"), "broadcast_dropout": ("False",), "normalize_qk": ("True",), "out_kernel_init": ("nnx.initializers.ones",), "keep_rngs": ("False",)},
        ("(2, 3, 4)", "(3, 4)", "(1, 2, 3, 4)"), (", decode=False", ", decode=False", ", decode=False, mask=nnx.make_causal_mask(jnp.ones((2, 3)))", ", deterministic=False, decode=False", ", deterministic=False, rngs=nnx.Rngs(4), decode=False", ", sow_weights=True, decode=False", ", deterministic=True, decode=False", ""), percent=12,
    ),
    "GRUCell": Row("nnx.GRUCell(4, {3|4}", CELL, ("carry(2, 4)", "carry(4,)"), percent=15),
    "LSTMCell": Row("nnx.LSTMCell(4, {3|4}", CELL, ("carry(2, 4)", "carry(4,)"), percent=15),
    "OptimizedLSTMCell": Row("nnx.OptimizedLSTMCell(4, {3|4}", CELL, ("carry(2, 4)", "carry(4,)"), percent=15),
    "SimpleCell": Row("nnx.SimpleCell(4, {3|4}", {**{k: v for k, v in CELL.items() if k != "gate_fn"}, "residual": ("True",)}, ("carry(2, 4)", "carry(4,)"), percent=15),
    "RNN": Row("nnx.RNN(nnx.{GRUCell|LSTMCell|OptimizedLSTMCell|SimpleCell}(4, 3, rngs=rngs)", {"time_major": ("True",), "return_carry": ("True",), "reverse": ("True",), "keep_order": ("True",), "unroll": ("2",), "broadcast_rngs": ("None",)}, ("(2, 5, 4)", "(3, 2, 4)"), ("", "", ", seq_lengths=jnp.array([2, 3])", ", return_carry=True", ", reverse=True", ", initial_carry=None", ", time_major=True")),
    "Bidirectional": Row("nnx.Bidirectional(nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs)), nnx.RNN(nnx.{GRUCell|SimpleCell}(4, 3, rngs=rngs))", {"time_major": ("True",), "return_carry": ("True",), "merge_fn": ("lambda a, b: a + b",)}, ("(2, 3, 4)",), ("", ", seq_lengths=jnp.array([2, 3])", ", return_carry=True")),
    "LoRA": Row("nnx.LoRA(4, {2|1}, {4|3}", {**DTYPES, "base_module": ("nnx.Linear(4, 4, rngs=rngs)", "nnx.Linear(4, 3, rngs=rngs)"), "a_initializer": ("nnx.initializers.ones",), "b_initializer": ("nnx.initializers.ones",), "lora_param_type": ("nnx.Param",)}, ("(3, 4)", "(4,)")),
    "LoRALinear": Row("nnx.LoRALinear(4, {3|4}, lora_rank=2", {**DTYPES, "use_bias": ("False",), "lora_dtype": ("jnp.bfloat16",), "lora_param_dtype": ("jnp.bfloat16",), "b_initializer": ("nnx.initializers.ones",)}, ("(3, 4)",)),
    "PReLU": Row("nnx.PReLU({|0.5|-0.25}", {"param_dtype": ("jnp.bfloat16",)}, ("(3, 4)", "bf16(3, 4)"), rngs=False),
    "Sequential": Row("nnx.Sequential({nnx.Linear(4, 3, rngs=rngs), nnx.relu|nnx.Dropout(0.5, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)||lambda x: (x, x), lambda x, y: x + y|lambda x: {'a': x}, lambda a: a}", {}, ("(3, 4)",), rngs=False),
    "WeightNorm": Row("nnx.WeightNorm(nnx.{Linear(4, 3, rngs=rngs)|Conv(4, 3, (2,), rngs=rngs)}", {"use_scale": ("False",), "epsilon": ("0.1",), "feature_axes": ("-1", "None", "0"), "scale_init": ("nnx.initializers.normal(1.0)",)}, ("(3, 4)",)),
    "SpectralNorm": Row("nnx.SpectralNorm(nnx.{Linear(4, 3, rngs=rngs)|Conv(4, 3, (2,), rngs=rngs)}", {"n_steps": ("2",), "epsilon": ("0.1",), "error_on_non_matrix": ("True", "False")}, ("(3, 4)",), ("", "", ", update_stats=False", ", update_stats=True")),
}  # fmt: skip


def draw_text(pen: Pen, text: str) -> str:
    """``{a|b}`` as one of its parts. Braces inside a part are kept: a part ends where its own do."""
    out, rest = "", text
    while "{" in rest:
        before, _, rest = rest.partition("{")
        depths = itertools.accumulate(((sign == "{") - (sign == "}") for sign in rest), initial=1)
        end = next(place for place, depth in enumerate(depths) if depth == 0) - 1
        out += before + pen.pick(*rest[:end].split("|"))
        rest = rest[end + 1 :]
    return out + rest


def draw_input(pen: Pen, shape: str) -> str:
    if shape.startswith("int"):
        return (
            f"jnp.arange(jnp.ones({shape[3:]}).size).reshape({shape[3:]}) % 3" if shape != "int()" else "jnp.array(2)"
        )
    dtype = pen.pick("", "", "", "", ".astype(jnp.bfloat16)", ".astype(jnp.float16)")
    if shape.startswith("bf16"):
        shape, dtype = shape[4:], ".astype(jnp.bfloat16)"
    return f"jax.random.normal(jax.random.key({pen.number(0, 3)}), {shape}){dtype}"


@st.composite
def layer_programs(draw: Draw) -> Program:
    pen = Pen(draw, "layers")
    row = LAYERS[pen.pick(*LAYERS)]
    rngs = ", rngs=rngs" if row.rngs else ""
    pen.step(f"rngs = {pen.pick(*RNGS)}")
    pen.step(f"m = {draw_text(pen, row.make)}{pen.options(row.percent, **row.options)}{rngs})", "m", "rngs")
    shape = pen.pick(*row.inputs)
    if shape.startswith("carry"):
        shape = shape[5:]
        pen.step(
            f"carry = m.initialize_carry({shape}{pen.pick(', rngs', ', nnx.Rngs(1)', ', rngs=nnx.Rngs(carry=2)')})",
            "carry",
        )
        call = "m(carry, x)"
    else:
        extra = pen.pick(*row.calls)
        call = "m.attend(x)" if extra == "attend" else f"m(x{extra})"
    pen.step(f"x = {draw_input(pen, shape)}")
    if pen.chance(15) and "MultiHead" in row.make:
        pen.step(f"m.init_cache({shape})", "m")
        call = "m(x[..., :1, :], decode=True)"
    if pen.chance(35):
        pen.step(
            pen.pick(
                "m.eval()",
                "m.train()",
                "m.set_attributes(deterministic=True, raise_if_not_found=False)",
                "m.set_attributes(use_running_average=True, raise_if_not_found=False)",
                "m = nnx.view(m, deterministic=True, use_running_average=False, raise_if_not_found=False)",
            ),
            "m",
        )
    for _ in range(pen.number(1, 2)):
        kind = pen.pick("call", "call", "call", "jit", "grad", "vmap", "jax")
        if kind == "call":
            pen.step(f"y = {call}", "y", "m")
            continue
        inner = call.replace("carry", "c") if "carry" in call else call
        arguments = "m, c, x" if "carry" in call else "m, x"
        given = "m, carry, x" if "carry" in call else "m, x"
        pen.step(f"def f({arguments}):\n    traces['f'] += 1\n    return {inner}")
        if kind == "jit":
            pen.step(f"f = nnx.jit(f)\ny = f({given}), f({given})", "y", "m")
        elif kind == "grad":
            pen.step(
                f"y = nnx.grad(lambda {arguments}: total(f({arguments})){pen.pick('', ', argnums=(0, 1)', ', argnums=nnx.DiffState(0, nnx.Param)')})({given})",
                "y",
                "m",
            )
        elif kind == "vmap":
            pen.step(
                f"y = nnx.vmap(f, in_axes=({', '.join(['None'] * given.count(','))}, 0))({given.rpartition(',')[0]}, jnp.stack([x, x]))",
                "y",
                "m",
            )
        else:
            pen.step(
                f"graphdef, s = nnx.split(m)\ny = jax.jit(lambda s, {arguments[3:]}: f(nnx.merge(graphdef, s), {arguments[3:]}))(s, {given[3:]})",
                "y",
                "m",
            )
    return pen.program()
