"""Keras with its NNX mode on the JAX backend: fit, save and load; its layers under transforms of nnx."""

import tempfile
from pathlib import Path

import jax
import keras
import numpy as np
from flax import nnx
from keras import layers
from results import hand_over

keras.utils.set_random_seed(0)
x = np.random.RandomState(0).randn(32, 8).astype("float32")
y = (x[:, 0] > 0).astype("int32")


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.drop, self.out = layers.Dense(4, "relu"), layers.Dropout(0.5), layers.Dense(2)

    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))


def fitted(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, metrics=["accuracy"])
    history = model.fit(x, y, epochs=3, batch_size=8, verbose=0, shuffle=False).history
    return np.array([history["loss"], history["accuracy"]])


sequential = keras.Sequential(
    [layers.Input((8,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.1), layers.Dense(2)]
)
inputs = layers.Input((8,))
functional = keras.Model(inputs, layers.Dense(2)(layers.LayerNormalization()(layers.Dense(4)(inputs))))
subclassed = Net()
results = {
    "sequential": fitted(sequential),
    "functional": fitted(functional),
    "subclassed": fitted(subclassed),
}
with tempfile.TemporaryDirectory() as folder:
    sequential.save(Path(folder) / "model.keras")
    loaded = keras.models.load_model(Path(folder) / "model.keras")
results["restored"] = loaded.predict(x, verbose=0)
results["predicted"] = sequential.predict(x, verbose=0)

dense = layers.Dense(3)
dense.build((None, 8))
graphdef, state = nnx.split(dense)
results["merged"] = nnx.merge(graphdef, state)(x)
assert isinstance(dense.kernel, nnx.Variable)
assert len(nnx.to_flat_state(nnx.state(dense))) == 2
forward = nnx.jit(lambda layer, x: layer(x))
results["jitted"] = forward(dense, x)
dense.kernel.assign(dense.kernel * 2)
results["assigned"] = forward(dense, x)
grads = nnx.grad(lambda layer, x: (layer(x) ** 2).mean(), argnums=nnx.DiffState(0, nnx.Variable))(dense, x)
results["gradients"] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])
seed = keras.random.SeedGenerator(3)
results["random"] = np.array([keras.random.normal((2,), seed=seed) for _ in range(2)])
hand_over(**results)
