"""Models that map ``(n, 4)`` to ``(n, 4)``: parts drawn from a table, in a row, some of them shared or nested."""

from __future__ import annotations

import dataclasses

from tests.differential.pen import Pen


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a model.

    Attributes:
        make: what is assigned to ``self.<name>``; ``{0}`` is drawn from ``options``.
        call: lines of ``__call__``; ``@`` is ``self.<name>``.
        options: what may stand in ``{0}``.
        layer: whether it is a module that maps ``(n, 4)`` to ``(n, 4)`` by itself.
        writes: whether a call changes it.
    """

    make: str
    call: str = "x = @(x)"
    options: tuple[str, ...] = ("",)
    layer: bool = True
    writes: bool = False


PLAIN = (
    "", "", "", ", use_bias=False", ", dtype=jnp.bfloat16", ", param_dtype=jnp.bfloat16",
    ", kernel_init=nnx.initializers.ones", ", kernel_metadata={'tag': 'decay'}",
    ", kernel_metadata={'note': (1, 2)}", ", bias_init=nnx.initializers.normal(0.1)",
)  # fmt: skip
NORM = (
    "", "", ", use_bias=False", ", use_scale=False", ", epsilon=1e-3", ", dtype=jnp.bfloat16",
    ", param_dtype=jnp.bfloat16", ", scale_init=nnx.initializers.normal(1.0)",
)  # fmt: skip

PARTS: dict[str, Part] = {
    "Linear": Part("nnx.Linear(4, 4{0}, rngs=rngs)", options=PLAIN),
    "LinearGeneral": Part(
        "nnx.LinearGeneral(4, (2, 2){0}, rngs=rngs)", "x = @(x).reshape(x.shape)", PLAIN, layer=False
    ),
    "Einsum": Part("nnx.Einsum('ab,bc->ac', (4, 4), {0}, rngs=rngs)", options=("(4,)", "None")),
    "Conv": Part("nnx.Conv(4, 4, (3,){0}, rngs=rngs)", "x = @(x[None])[0]", PLAIN, layer=False),
    "BatchNorm": Part(
        "nnx.BatchNorm(4{0}, rngs=rngs)", options=(*NORM, ", momentum=0.5", ", use_running_average=True"), writes=True
    ),
    "LayerNorm": Part("nnx.LayerNorm(4{0}, rngs=rngs)", options=NORM),
    "RMSNorm": Part("nnx.RMSNorm(4{0}, rngs=rngs)", options=tuple(text for text in NORM if "bias" not in text)),
    "GroupNorm": Part("nnx.GroupNorm(4, num_groups=2{0}, rngs=rngs)", "x = @(x)", NORM),
    "Dropout": Part(
        "nnx.Dropout(0.5{0}, rngs=rngs)",
        options=("", "", ", broadcast_dims=(0,)", ", deterministic=True", ", rng_collection='noise'"),
        writes=True,
    ),
    "Embed": Part(
        "nnx.Embed(3, 4{0}, rngs=rngs)", "x = x + @(jnp.arange(x.shape[0]) % 3)", ("", ", dtype=jnp.bfloat16"), False
    ),
    "MultiHeadAttention": Part(
        "nnx.MultiHeadAttention(2, 4, decode=False{0}, rngs=rngs)",
        options=(
            "", "", ", use_bias=False", ", qkv_features=8", ", normalize_qk=True", ", dropout_rate=0.5",
            ", out_features=4", ", in_kv_features=4",
        ),
        writes=True,
    ),
    "RNN": Part(
        "nnx.RNN(nnx.{0}(4, 4, rngs=rngs), rngs=rngs)", "x = @(x[None])[0]",
        ("GRUCell", "LSTMCell", "OptimizedLSTMCell", "SimpleCell"), layer=False, writes=True,
    ),
    "LoRA": Part("nnx.LoRA(4, 2, 4{0}, rngs=rngs)", options=("", ", dtype=jnp.bfloat16")),
    "LoRALinear": Part("nnx.LoRALinear(4, 4, lora_rank=2, rngs=rngs)"),
    "PReLU": Part("nnx.PReLU({0})", options=("", "0.2", "param_dtype=jnp.bfloat16")),
    "Sequential": Part("nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.{0})", options=("relu", "tanh", "gelu", "silu")),
    "Residual": Part("nnx.Sequential(nnx.LayerNorm(4, rngs=rngs), nnx.Linear(4, 4{0}, rngs=rngs))", "x = x + @(x)", PLAIN),
    "Param": Part("nnx.Param(jnp.full((4,), 0.5){0})", "x = x * @[...]", ("", ", tag='decay'"), False),
    "Calls": Part("{0}(jnp.array(0))", "@[...] += 1", ("Count", "nnx.Variable", "nnx.BatchStat"), False, True),
    "Average": Part("nnx.BatchStat(jnp.zeros(4))", "@[...] = 0.9 * @[...] + 0.1 * x.mean(0)", layer=False, writes=True),
    "List": Part("nnx.List([nnx.Linear(4, 4{0}, rngs=rngs) for _ in range(2)])", "for part in @:\n            x = part(x)", PLAIN, False),
    "Dict": Part("nnx.Dict(up=nnx.Linear(4, 2{0}, rngs=rngs), down=nnx.Linear(2, 4, rngs=rngs))", "x = @['down'](nnx.relu(@.up(x)))", PLAIN, False),
    "Sow": Part("{0}", "self.sow(nnx.Intermediate, 'h', x)", ("1", "'sown'"), False, True),
    "Noise": Part("rngs{0}", "x = x + 0.1 * @.noise.normal(x.shape)", ("", ".fork()"), False, True),
    "Array": Part("jnp.{0}", "x = x + @", ("ones(4)", "arange(4.0)"), False),
    "SetArray": Part("nnx.data(jnp.array({0}))", "@ = @ + 1", ("0", "0.5"), False, True),
    "Static": Part("{0}", "x = x * len(str(@))", ("3", "'text'", "None", "(1, 2)", "nnx.relu", "jnp.float32"), False),
    "WeightNorm": Part("nnx.WeightNorm(nnx.Linear(4, 4, rngs=rngs), rngs=rngs{0})", options=("", ", use_scale=False")),
    "SpectralNorm": Part("nnx.SpectralNorm(nnx.Linear(4, 4, rngs=rngs), rngs=rngs{0})", "x = @(x)", ("", ", n_steps=2"), writes=True),
}  # fmt: skip

# One that every transform takes: nothing is sown, and no attribute set.
EVERYWHERE = tuple(name for name in PARTS if name not in ("Sow", "SetArray", "WeightNorm", "SpectralNorm"))
PURE = tuple(name for name in EVERYWHERE if not PARTS[name].writes)


@dataclasses.dataclass(frozen=True)
class Model:
    """A class of a program: its name, the names of its attributes, and which part each is."""

    name: str
    parts: dict[str, str]

    def attributes(self, *, layers: bool = False) -> list[str]:
        return [name for name, part in self.parts.items() if not layers or (part in PARTS and PARTS[part].layer)]


def define_model(
    pen: Pen, parts: tuple[str, ...] = tuple(PARTS), *, most: int = 3, shared: bool = True, nested: bool = True
) -> Model:
    """Draw a class and define it."""
    chosen = {f"p{number}": pen.pick(*parts) for number in range(pen.number(1, most))}
    sets, calls = [], []
    for name, part in chosen.items():
        row = PARTS[part]
        sets.append(f"self.{name} = {row.make.format(pen.pick(*row.options))}")
        calls.append(row.call.replace("@", f"self.{name}"))
    model = Model(pen.name("Net"), dict(chosen))
    layers = model.attributes(layers=True)
    if shared and layers and pen.chance(30):
        sets.append(f"self.again = self.{pen.pick(*layers)}")
        calls.append("x = self.again(x)")
        model.parts["again"] = "shared"
    if nested and pen.chance(25):
        inner = define_model(pen, parts, most=2, shared=False, nested=False)
        sets.append(f"self.inner = {inner.name}(rngs)")
        calls.append("x = self.inner(x)")
        model.parts["inner"] = "inner"
    lines = ["class " + model.name + "(nnx.Module):", "    def __init__(self, rngs):"]
    lines += [f"        {line}" for line in sets]
    lines += ["", "    def __call__(self, x):", *[f"        {line}" for line in calls], "        return x"]
    pen.define("\n".join(lines))
    return model


RNGS = ("nnx.Rngs(0)", "nnx.Rngs(0)", "nnx.Rngs(1, dropout=2)", "nnx.Rngs(params=0, dropout=1, noise=2, carry=3)", "nnx.Rngs(default=3, noise=jax.random.key(7))")  # fmt: skip


def make_model(pen: Pen, model: Model, stem: str = "m") -> str:
    """A step that makes one; its name."""
    name = pen.name(stem)
    pen.step(f"{name} = {model.name}({pen.pick(*RNGS)})", name)
    return name


def make_input(pen: Pen, shape: str = "(3, 4)", stem: str = "x") -> str:
    """A step that makes an input of floats."""
    name = pen.name(stem)
    seed = pen.number(0, 3)
    pen.step(f"{name} = jax.random.normal(jax.random.key({seed}), {shape})")
    return name
