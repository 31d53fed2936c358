"""Pairs of implementations: with a fault that was planted in one of them, and without."""

import dataclasses
import importlib.util

import jax.numpy as jnp
import numpy as np

import plait
from plait.util.paths import format_path, parse_path
from tests.inspect.compare.architectures import NAMES, architectures, inputs_of, made, set_value
from tests.inspect.compare.faults import Fault, faults_of

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_FLAX = importlib.util.find_spec("flax") is not None
LIBRARIES = ("plait", *(["flax.nnx", "linen"] if HAS_FLAX else []), *(["torch"] if HAS_TORCH else []))
IN_TORCH, IN_LINEN = ("encoder", "decoder", "resnet", "tagger"), ("encoder", "resnet")


def counterpart(library, name, seed=0, **sizes):
    """Another implementation of an architecture, and what ``plait.compare`` needs beside it."""
    model, x = made(plait, name, seed), inputs_of(name, seed, **sizes)
    if library == "plait":
        return model, {}
    if library == "flax.nnx":
        from flax import nnx

        return made(nnx, name, seed), {}
    if library == "linen":
        from tests.inspect.compare.linen_models import linen_model

        return linen_model(name, model, x), {}
    from tests.inspect.compare.torch_models import MAPS, torch_inputs, torch_model

    return torch_model(name, model), {"names": MAPS.get(name), "b_inputs": torch_inputs(name, x)}


def has(library, name):
    return library in LIBRARIES and name in {"torch": IN_TORCH, "linen": IN_LINEN}.get(library, NAMES)


@dataclasses.dataclass(frozen=True)
class Planted:
    """A fault in a plait model, and the library of the model that it is compared with."""

    fault: Fault
    library: str

    def __str__(self):
        return f"{self.library}: {self.fault}"

    def compare(self):
        name = self.fault.architecture
        other, options = counterpart(self.library, name)
        first, second = self.fault.faulty(), other
        # Faults are in the first or in the second; a name map and other inputs belong to the second.
        if len(str(self)) % 2 and self.library != "torch":
            first, second = second, first
        return plait.compare(first, second, inputs_of(name), **options), first is other

    def shows(self, found):
        """Whether the results differ by more than 1e-4 of the largest value, whatever ``compare`` makes of it."""
        whole = found.compared[-1].output
        return not whole.largest <= 1e-4 * whole.scale

    def is_right(self, found, swapped):
        """Whether the module with the fault was named, or the innermost around it that both models have."""
        if found.departure is None:
            return False
        seen = {each.b_path if swapped else each.path for each in found.compared}
        path = self.fault.path
        while path and format_path(path) not in seen:
            path = path[:-1]
        return parse_path(found.departure.b_path if swapped else found.departure.path) == path


def planted():
    """Every fault once; the other model is of each library in turn."""
    cases = []
    for name in NAMES:
        libraries = [library for library in ("plait", "plait", "torch", "flax.nnx", "linen") if has(library, name)]
        cases += [Planted(fault, libraries[n % len(libraries)]) for n, fault in enumerate(faults_of(name))]
    return cases


# Pairs without a fault ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Clean:
    """Two implementations that agree: ``how`` is a library or the name of a change that changes no result."""

    architecture: str
    how: str
    seed: int
    batch: int = 3

    def __str__(self):
        return f"{self.architecture}, {self.how}, seed {self.seed}"

    def compare(self):
        a, x = made(plait, self.architecture, self.seed), inputs_of(self.architecture, self.seed, self.batch)
        if self.how in LIBRARIES:
            b, options = counterpart(self.how, self.architecture, self.seed, batch=self.batch)
        else:
            a, b = _CHANGES[self.how](a, plait.clone(a), self.architecture)
            options = {}
        return plait.compare(a, b, x, **options)


def _jitted(a, b, name):
    """One program, in which XLA fuses operations, so that they round otherwise."""

    class Jitted(architectures(plait)[name]):
        @plait.jit
        def __call__(self, *args):
            return super().__call__(*args)

    whole = Jitted(plait.Rngs(0))
    plait.update(whole, plait.state(b))
    return a, whole


def _permuted(a, b, name):
    """Hidden units in another order: what is inside differs, and the result does not."""
    order = np.random.default_rng(0).permutation
    for _, module in plait.iter_modules(b):
        if all(hasattr(module, part) for part in ("up", "down", "activation")):
            units = order(module.down.kernel.shape[0])
            for part in [module.up, *([module.gate] if hasattr(module, "gate") else [])]:
                set_value(part.kernel, np.asarray(part.kernel[...])[:, units])
                if part.bias is not None:
                    set_value(part.bias, np.asarray(part.bias[...])[units])
            set_value(module.down.kernel, np.asarray(module.down.kernel[...])[units])
    return a, b


def _halved(a, b, name):
    """Both in bfloat16, and one of them as one program."""
    a, b = _jitted(a, b, name)
    for model in (a, b):
        for _, module in plait.iter_modules(model):
            if hasattr(module, "dtype"):
                module.dtype = jnp.bfloat16
            for what, value in list(vars(module).items()):
                if isinstance(value, plait.Param):
                    setattr(module, what, plait.Param(value[...].astype(jnp.bfloat16)))
    return a, b


_CHANGES = {"jit": _jitted, "permuted": _permuted, "bfloat16": _halved}


def clean():
    cases = []
    for seed in (1, 2):
        for name in NAMES:
            cases += [Clean(name, how, seed) for how in ("plait", "flax.nnx", "linen", "torch") if has(how, name)]
            cases += [Clean(name, "jit", seed, batch=2 + seed)]
        cases += [Clean(name, "permuted", seed) for name in ("encoder", "decoder", "mixer")]
    cases += [Clean(name, "torch", 3, batch=17) for name in IN_TORCH if has("torch", name)]
    cases += [Clean(name, "bfloat16", 3) for name in ("encoder", "decoder", "resnet")]
    return cases
