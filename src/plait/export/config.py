"""The names of Orbax Export's ``config``; ``orbax/`` defines them."""

from .orbax.config import Config, bool_env, config, obx_export_tf_preprocess_only

__all__ = ["Config", "bool_env", "config", "obx_export_tf_preprocess_only"]
