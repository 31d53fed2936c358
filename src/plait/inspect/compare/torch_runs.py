"""Runs a torch module and records its calls, with forward hooks that are removed afterwards."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...util.paths import Path
from .calls import Begun, Recorder, Run, numpy_of, owner_of


def is_torch(model: Any) -> bool:
    return "torch" in sys.modules and isinstance(owner_of(model), _torch().nn.Module)


def _torch() -> Any:
    """A caller that passes a torch module has imported torch, so plait does not import it here."""
    return sys.modules["torch"]


def run_torch(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    """Run a torch module without gradients. Its buffers and torch's random state are restored."""
    torch = _torch()
    root = owner_of(model)
    device = next((tensor.device for tensor in root.parameters()), None)
    args, kwargs = jax.tree.map(lambda leaf: _to_torch(leaf, device), (args, dict(kwargs)))
    recorder = Recorder(_from_torch)
    running: list[Begun] = []

    def before(module: Any, args: Any, kwargs: Any) -> None:
        running.append(recorder.begin(args, kwargs))

    def after(places: tuple[Path, ...]) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            recorder.end(running.pop(), output, places, "", module)

        return hook

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_restored_buffers(root))
        for module, places in _modules(root):
            if places[0]:
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after(places), with_kwargs=True).remove)
        recorder.around(lambda: model(*args, **kwargs), ((),), "", root, args, kwargs)
    return recorder.run("torch")


def _modules(root: Any) -> list[tuple[Any, tuple[Path, ...]]]:
    """Each module with all its paths."""
    found: dict[int, tuple[Any, list[Path]]] = {}
    for name, module in root.named_modules(remove_duplicate=False):
        path = tuple(int(part) if part.isdecimal() else part for part in name.split(".") if part)
        found.setdefault(id(module), (module, []))[1].append(path)
    return [(module, tuple(places)) for module, places in found.values()]


@contextlib.contextmanager
def _restored_buffers(root: Any) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in root.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _to_torch(leaf: Any, device: Any) -> Any:
    torch = _torch()
    array = numpy_of(leaf)
    if array is None:
        return leaf
    if jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(np.int64)  # torch's index dtype
    if array.dtype == jnp.bfloat16:
        return torch.tensor(array.astype(np.float32), device=device).to(torch.bfloat16)
    return torch.tensor(np.array(array), device=device)


def _from_torch(leaf: Any) -> np.ndarray | None:
    """A copy: torch may change the tensor in place."""
    torch = _torch()
    if not isinstance(leaf, torch.Tensor) or leaf.is_sparse:
        return None
    tensor = leaf.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.float().numpy().astype(jnp.bfloat16)
    return np.array(tensor.numpy())
