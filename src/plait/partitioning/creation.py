"""Creating a model directly on its devices, without a full copy of it anywhere."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from ..core.functional.merge import merge
from ..core.functional.split import split
from ..errors import ArgumentError, UnevenLayoutWarning
from ..util.jax_versions import coordinator, memory_saving_options
from ..util.words import first_few
from .processes.connect import all_report
from .processes.key_value_store import gather
from .shardings import get_abstract_model

A = TypeVar("A")
_CALLS = itertools.count()


def create_sharded(make: Callable[[], A], mesh: Mesh | None = None) -> A:
    """Make a model, or a dict of several objects, on a mesh: each device computes its own part of every variable.

    Variables are computed one at a time. Beside its parts of the model, a device needs the memory to compute its part
    of one variable: for random numbers three times the size of that part. The host needs none.

    On a mesh of all processes of a run, all call it, with a ``make`` that makes the same: their programs are compared.

    Args:
        make: makes the objects; it is traced twice, so it should have no other effects.
        mesh: ``None`` means the current mesh; without a mesh, ``make`` is simply called.

    Raises:
        ArgumentError: a variable's names do not fit the mesh or its array; the error names the path. Raised before
            anything is computed. Or the processes create different models, such as from different seeds.

    Example:
        >>> make = lambda: plait.Linear(4, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": (None, "model")})
        >>> layer = plait.partitioning.create_sharded(make, jax.make_mesh((8,), ("model",)))
        >>> layer.kernel.get_raw_value().sharding.shard_shape((4, 8))
        (4, 1)
    """
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    if mesh.empty:
        return make()
    order: list[Any] = []

    def noted() -> Any:
        made: Any = make()
        order[:] = made if type(made) is dict else ()
        return made

    graphdef, values = creation_program(noted, mesh)
    with jax.set_mesh(mesh):
        if 1 < jax.process_count() == len({each.process_index for each in mesh.devices.flat}) and coordinator():
            _check_same_program(values.lower().as_text())
        made: Any = merge(graphdef, values())
    return {key: made[key] for key in order} if type(made) is dict else made  # type: ignore[return-value]  # JAX sorts


def _check_same_program(text: str) -> None:
    """Raise in all processes if one would run another program: its parts, and its copies, would be of another model."""
    digests = gather(f"plait/create/{next(_CALLS)}", hashlib.sha256(text.encode()).hexdigest())
    others = [str(number) for number, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise all_report(
            ArgumentError(
                "the processes of this run create different models",
                at=f"create_sharded, in process {first_few(others, 4)}",
                found="another program than in process 0, as from another seed, size or initial value",
                expected="the same program in all processes, each of which computes its part of one model",
                do="pass the same seed and arguments, whatever jax.process_index() is",
            )
        )


def creation_program(make: Callable[[], Any], mesh: Mesh) -> tuple[Any, Any]:
    """The structure of what ``make`` makes, and a jitted function that computes its values on their devices."""
    graphdef, abstract = get_abstract_model(make, mesh, graph=True)
    shardings = jax.tree_util.tree_map(lambda x: x.sharding, abstract)
    # The variables are independent; computed all at once, the random bits of all of them would be in memory together.
    options = memory_saving_options()

    def values() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnevenLayoutWarning)  # told above, with the paths
            return split(make(), graph=True)[1]

    return graphdef, jax.jit(values, out_shardings=shardings, compiler_options=options)
