"""The names that each layer's variables have in torch and in Linen."""

import pytest

import plait
from plait.convert import linen_layouts, torch_layouts  # noqa: F401 - they register the layouts
from plait.convert.layouts import alternatives
from tests.convert.test_conversion import LAYERS

AFFINE = "kernel = weight; bias = bias"
NORM = "scale = weight; bias = bias"
OUT = "out.kernel = out_proj.weight; out.bias = out_proj.bias"
IN = "query.bias key.bias value.bias = in_proj_bias"
APART = "query.kernel = q_proj_weight; key.kernel = k_proj_weight; value.kernel = v_proj_weight"
ATTENTION = (f"query.kernel key.kernel value.kernel = in_proj_weight; {IN}; {OUT}", f"{APART}; {IN}; {OUT}")
LSTM = (
    "{0}ii.kernel {0}if_.kernel {0}ig.kernel {0}io.kernel = weight_ih{1}; "
    "{0}hi.kernel {0}hf.kernel {0}hg.kernel {0}ho.kernel = weight_hh{1}; "
    "{0}hi.bias {0}hf.bias {0}hg.bias {0}ho.bias = bias_ih{1} bias_hh{1}"
)
PACKED = "{0}dense_i.kernel = weight_ih{1}; {0}dense_h.kernel = weight_hh{1}; {0}dense_{2}.bias = bias_ih{1} bias_hh{1}"
SIDES = [
    PACKED.format(f"{side}_rnn.cell.", f"_l0{end}", "i") for side, end in (("forward", ""), ("backward", "_reverse"))
]
STATISTICS = "mean = running_mean; var = running_var; ignored num_batches_tracked"
TORCH = {
    **dict.fromkeys(("Linear", "LinearGeneral", "LoRALinear", "ConvTranspose"), (AFFINE,)),
    **dict.fromkeys(("Conv over one axis", "Conv over three axes", "ConvTranspose of a transposed kernel"), (AFFINE,)),
    "Linear without bias": ("kernel = weight",),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "InstanceNorm"), (NORM,)),
    "BatchNorm": (f"{NORM}; {STATISTICS}",),
    "BatchNorm without scale": (f"bias = bias; {STATISTICS}",),
    "RMSNorm": ("scale = weight",),
    "Embed": ("embedding = weight",),
    "PReLU": ("negative_slope = weight",),
    "LoRA": ("lora_a = lora_A.weight; lora_b = lora_B.weight",),
    "MultiHeadAttention": ATTENTION,
    "MultiHeadAttention with normalized keys": ATTENTION,
    "MultiHeadAttention over other keys": (f"{APART}; out.kernel = out_proj.weight",),
    "LSTMCell": (LSTM.format("", ""),),
    "OptimizedLSTMCell": (PACKED.format("", "", "h"),),
    "GRUCell": (PACKED.format("", "", "i"),),
    "SimpleCell": (PACKED.format("", "", "i"),),
    "RNN": (LSTM.format("cell.", "_l0"),),
    "Bidirectional": ("; ".join(SIDES),),
}
LINEN = {
    "LSTMCell": ("if_.kernel = if.kernel",),
    "OptimizedLSTMCell": (
        "dense_i.kernel = ii.kernel if.kernel ig.kernel io.kernel; "
        "dense_h.kernel = hi.kernel hf.kernel hg.kernel ho.kernel; dense_h.bias = hi.bias hf.bias hg.bias ho.bias",
    ),
    "GRUCell": (
        "dense_i.kernel = ir.kernel iz.kernel in.kernel; dense_h.kernel = hr.kernel hz.kernel hn.kernel; "
        "dense_i.bias = ir.bias iz.bias in.bias hn.bias",
    ),
    "SimpleCell": ("dense_i.kernel = i.kernel; dense_i.bias = i.bias; dense_h.kernel = h.kernel",),
}  # all others have plait's names


def names_of(layout):
    pieces = [f"{' '.join(piece.ours)} = {' '.join(piece.theirs)}" for piece in layout.pieces]
    return "; ".join([*pieces, *(f"ignored {name}" for name in layout.ignored)])


@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_has_its_names_in_each_library(case):
    layer = LAYERS[case](plait.Rngs(0))
    for library, names in (("torch", TORCH), ("linen", LINEN)):
        assert tuple(map(names_of, alternatives(library, layer))) == names.get(case, ())
