"""The names of Orbax Export's ``dtensor_utils``; ``orbax/`` defines them."""

from .orbax.dtensor_utils import (
    Mesh,
    dtensor_initialized,
    get_current_dtensor_mesh,
    get_current_mesh,
    get_pspec_from_jax_arrays,
    initialize_dtensor,
    jax_array_to_dtensor,
    jax_mesh_to_dtensor_mesh,
    maybe_enable_dtensor_export_on,
    shutdown_dtensor,
)

__all__ = [
    "Mesh",
    "dtensor_initialized",
    "get_current_dtensor_mesh",
    "get_current_mesh",
    "get_pspec_from_jax_arrays",
    "initialize_dtensor",
    "jax_array_to_dtensor",
    "jax_mesh_to_dtensor_mesh",
    "maybe_enable_dtensor_export_on",
    "shutdown_dtensor",
]
