"""The names of Orbax Export's ``utils``; ``orbax/`` defines them."""

from .orbax.exported_maps import load_jax_exported_map, save_jax_exported_map
from .orbax.serving import make_e2e_inference_fn
from .orbax.signatures import (
    CallableSignatures,
    TensorSpecWithDefault,
    make_auto_batching_function,
    remove_signature_defaults,
    with_default_args,
)
from .orbax.utils import (
    get_key_name,
    get_lowering_platforms,
    get_param_names,
    get_variable_tree,
    to_bfloat16,
)

__all__ = [
    "CallableSignatures",
    "TensorSpecWithDefault",
    "get_key_name",
    "get_lowering_platforms",
    "get_param_names",
    "get_variable_tree",
    "load_jax_exported_map",
    "make_auto_batching_function",
    "make_e2e_inference_fn",
    "remove_signature_defaults",
    "save_jax_exported_map",
    "to_bfloat16",
    "with_default_args",
]
