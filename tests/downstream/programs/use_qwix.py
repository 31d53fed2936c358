"""qwix: quantization after training and during it, and LoRA on a quantized model, all of an nnx model."""

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from results import hand_over, stored, train


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.hidden = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
        self.mix = nnx.Einsum("bi,io->bo", (16, 16), rngs=rngs)
        self.out = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x))).mean((1, 2))
        return self.out(nnx.relu(self.mix(self.hidden(x))))


def make():
    return Net(nnx.Rngs(0))


def loss(model, x):
    return (model(x) ** 2).mean()


x = jax.random.uniform(jax.random.key(1), (2, 8, 8, 3))
rules = [qwix.QuantizationRule(module_path=".*", weight_qtype="int8", act_qtype="int8")]
model = make()
model.eval()
ptq = qwix.quantize_model(model, qwix.PtqProvider(rules), x)
state = nnx.to_pure_dict(nnx.state(ptq))
qat = qwix.quantize_model(make(), qwix.QtProvider([qwix.QtRule(module_path=".*", weight_qtype="int8")]), x)
qat_losses = train(qat, loss, x)
lora = qwix.apply_lora_to_model(
    model, qwix.LoraProvider(module_path="hidden|out", rank=2, alpha=2.0), x, rngs=nnx.Rngs(5)
)
new = stored(model, make)
new.eval()
hand_over(
    plain=model(x),
    restored=new(x),
    quantized=ptq(x),
    weights=state["hidden"]["kernel"]["array"]["qvalue"]
    if isinstance(state["hidden"]["kernel"], dict)
    else state["hidden"]["kernel"].array.qvalue,
    size=jnp.array(sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(ptq, nnx.Param)))),
    qat=qat_losses,
    lora=train(lora, loss, x, wrt=nnx.LoRAParam),
    lora_parameters=jnp.array([leaf.size for leaf in jax.tree.leaves(nnx.state(lora, nnx.LoRAParam))]),
)
