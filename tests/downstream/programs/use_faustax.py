"""faustax: audio effects that are scanned sample by sample; one is trained, one goes on block by block."""

import faustax
import jax
from faustax.modules import Compressor, ModalPiano, ModeDrive
from flax import nnx
from results import hand_over, stored, train

x = 0.3 * jax.random.normal(jax.random.key(0), (2, 2, 64))


def make():
    return ModeDrive(sample_rate=8000, rngs=nnx.Rngs(0, nentry=1))


def loss(model, x):
    return (model(x) ** 2).mean()


model = make()
losses = train(model, loss, x[0, :1])
new = stored(model, make, (nnx.Param, nnx.RngCount))
compressor = Compressor(sample_rate=8000, rngs=nnx.Rngs(0))
inputs = x[0, : compressor.num_inputs]
carry, first = compressor.process_block(compressor.initialize_carry(), inputs)
_, second = compressor.process_block(carry, inputs)
piano = ModalPiano(sample_rate=8000, rngs=nnx.Rngs(0))
batched = faustax.Compressor(8000)
hand_over(
    losses=losses,
    after=model(x[0, :1]),
    restored=new(x[0, :1]),
    first=first,
    second=second,
    batched=batched.process(x[:, : batched.module.num_inputs], threshold_db=-20.0),
    room=faustax.Freeverb(8000).process(x),
    ringing=piano.process_block(piano.initialize_carry(), num_samples=32)[1],
)
