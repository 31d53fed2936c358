"""tunix: its trainer for fine-tuning, with LoRA of qwix and checkpoints, on its own toy transformer."""

import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx
from results import hand_over
from tunix.sft import peft_trainer
from tunix.tests import test_common


def loss(model, input_tokens, input_mask, positions, attention_mask, images=None):
    logits, _ = model(input_tokens, positions, None, attention_mask)
    each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], input_tokens[:, 1:])
    return (each * input_mask[:, 1:]).mean()


def inputs(batch):
    positions = jnp.broadcast_to(jnp.arange(batch.input_tokens.shape[1]), batch.input_tokens.shape)
    mask = jnp.ones((*batch.input_tokens.shape, batch.input_tokens.shape[1]), bool)
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": positions,
        "attention_mask": mask,
    }


def trained(model, folder=None):
    config = peft_trainer.TrainingConfig(eval_every_n_steps=10, max_steps=3, checkpoint_root_directory=folder)
    trainer = peft_trainer.PeftTrainer(model, optax.adam(1e-2), config)
    trainer = trainer.with_gen_model_input_fn(inputs).with_loss_fn(loss)
    tokens = np.random.RandomState(0).randint(0, 64, (3, 2, 8))
    batches = [peft_trainer.TrainingInput(input_tokens=each, input_mask=np.ones_like(each)) for each in tokens]
    trainer.train(batches)
    trainer.close()
    return trainer


def make():
    return test_common.ToyTransformer(test_common.ModelConfig(num_layers=1, vocab_size=64), rngs=nnx.Rngs(0))


def values(model, kind):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(nnx.state(model, kind))])


os.environ["TQDM_DISABLE"] = "1"
full = make()
with tempfile.TemporaryDirectory() as folder:
    trained(full, folder)
    again = make()
    resumed = trained(again, folder)
example = test_common.get_dummy_inputs_for_lora_toy_transformer_tests()
lora = qwix.apply_lora_to_model(
    make(), qwix.LoraProvider(module_path=".*w1|.*w2", rank=2, alpha=2.0), **example, rngs=nnx.Rngs(5)
)  # fmt: skip
before = values(lora, nnx.LoRAParam)
trained(lora)
hand_over(
    full=values(full, nnx.Param),
    resumed=values(again, nnx.Param),
    steps=resumed.train_steps,
    lora_before=before,
    lora=values(lora, nnx.LoRAParam),
)
