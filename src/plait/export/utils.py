"""The names of Orbax Export's ``utils``; ``orbax/`` defines them."""

from .orbax.exported_maps import (
    load_jax_exported_map as load_jax_exported_map,
    save_jax_exported_map as save_jax_exported_map,
)
from .orbax.serving import make_e2e_inference_fn as make_e2e_inference_fn
from .orbax.signatures import (
    CallableSignatures as CallableSignatures,
    TensorSpecWithDefault as TensorSpecWithDefault,
    make_auto_batching_function as make_auto_batching_function,
    remove_signature_defaults as remove_signature_defaults,
    with_default_args as with_default_args,
)
from .orbax.utils import (
    get_key_name as get_key_name,
    get_lowering_platforms as get_lowering_platforms,
    get_param_names as get_param_names,
    get_variable_tree as get_variable_tree,
    to_bfloat16 as to_bfloat16,
)

__all__ = [name for name in dir() if not name.startswith("_")]  # pyright: ignore[reportUnsupportedDunderAll]
