"""The names of Orbax Export's ``dtensor_utils``; ``orbax/`` defines them."""

from .orbax.dtensor_utils import (
    Mesh as Mesh,
    dtensor_initialized as dtensor_initialized,
    get_current_dtensor_mesh as get_current_dtensor_mesh,
    get_current_mesh as get_current_mesh,
    get_pspec_from_jax_arrays as get_pspec_from_jax_arrays,
    initialize_dtensor as initialize_dtensor,
    jax_array_to_dtensor as jax_array_to_dtensor,
    jax_mesh_to_dtensor_mesh as jax_mesh_to_dtensor_mesh,
    maybe_enable_dtensor_export_on as maybe_enable_dtensor_export_on,
    shutdown_dtensor as shutdown_dtensor,
)

__all__ = [name for name in dir() if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
