"""The house as data: every file of src/plait, bottom-up, and what each folder may import.

A file imports from the areas that its own area names in ``MAY_IMPORT``, or from files that stand before it in
its own area's list. An area is a folder of src/plait, or a group of the files that lie directly in it.
"""

FILES: dict[str, tuple[str, ...]] = {
    "row 0": ("errors", "words", "notices", "paths", "typing", "_compat", "_public"),
    "core": (
        "clock", "named", "statics", "trace_guard", "filters", "operators", "repr", "settings",
        "variable_metadata", "variables", "variable_names", "nodes", "state", "graphdef", "diff", "flatten", "axes",
        "attributes", "sowing", "module", "plan", "state_leaves", "unflatten", "containers", "walks", "modes",
        "functional", "traversal", "locate", "config", "update_context", "proxy_caller", "views", "path_patterns",
        "method_observers", "layer_scopes", "capture", "nonfinite", "rngs", "surgery", "graph",
    ),
    "transforms": (
        "prefixes", "aliasing", "captures", "crossing", "arguments", "lanes", "routes", "donating", "axis_names",
        "jit_shardings", "compiled", "dispatch", "stages", "shapes", "jit", "cached_partial", "selections",
        "autodiff", "output_gradients", "tangent_trees",
        "tangents", "rule_calls", "rule_cotangents", "custom_rules", "batching", "loops", "branches", "sharded",
        "remat", "tree_states", "rng_splits", "lax_map", "compat",
    ),
    "partitioning": (
        "axis_rules", "mesh", "specs", "shardings", "creation", "activations", "recipes", "rule_checks",
        "processes", "boxes", "spmd",
    ),
    "nn": (
        "masks", "promotion", "checks", "initializers", "activations",
        "prelu", "linear", "conv", "embedding", "norm", "reparametrisation", "dropout", "rotary", "dot_product",
        "kv_cache", "attention", "cells", "recurrent", "pooling", "lora", "sequential",
    ),
    "checkpoint": (
        "layout", "leaves", "together", "orbax", "stored", "safetensors", "orbax_trees", "abstract", "compare",
    ),
    "bridge": (
        "linen", "kinds", "nnx_meta", "leaves", "collections", "variables", "rngs", "lazy", "init_apply", "filling",
        "scope", "to_nnx", "linen_wrapper", "wrappers", "children", "module", "interop", "partitioning",
        "linen_bytes", "sources", "name_map", "layouts", "torch_layouts", "linen_layouts", "wanted",
        "conversion_report", "convert", "torch_weights",
    ),
    "export": (
        "dependencies", "whole_write", "weights", "input_spec", "arguments", "program", "operations", "lowering",
        "unsupported", "portable", "readers", "stablehlo_loader", "rewriting", "onnx_pooling", "runners", "constants",
        "typing", "config", "obm_configs", "variable_names", "xla_call", "conversion", "size_variants",
        "dtensor_utils", "variable_trees", "jax_module", "signatures", "data_processors", "pipeline", "serving",
        "warmup", "export_manager", "exported_maps", "utils", "validation_report", "validation_job", "validation",
        "saved_model", "stablehlo", "onnx", "litert", "saving", "describe", "validate", "proof",
    ),
    "inspect": ("tabulate", "sharding", "retrace", "treescope", "explorer"),
    "training": (
        "optimizer", "learning_rates", "loss_scaling", "train_state", "metric", "classification", "metrics",
        "ema", "loop", "progress", "resume",
    ),
    "demo": ("images", "figures", "exports", "runs", "table", "digits"),
    "migrate": ("known", "uses", "rewrite", "files"),
    "program": ("launch", "cli_export", "cli"),
}  # fmt: skip

MAY_IMPORT: dict[str, frozenset[str]] = {
    "row 0": frozenset(),
    "core": frozenset({"row 0"}),
    "transforms": frozenset({"row 0", "core"}),
    "partitioning": frozenset({"row 0", "core"}),
    "nn": frozenset({"row 0", "core", "transforms", "partitioning"}),
    "checkpoint": frozenset({"row 0", "core", "transforms", "partitioning"}),
    # Conversion states layouts of the standard layers, and reads files in the formats of checkpoint/.
    "bridge": frozenset({"row 0", "core", "transforms", "partitioning", "nn", "checkpoint"}),
    "export": frozenset({"row 0", "core", "transforms", "partitioning"}),
    "inspect": frozenset({"row 0", "core", "transforms", "partitioning"}),
    "training": frozenset({"row 0", "core", "transforms", "partitioning", "checkpoint"}),
    "demo": frozenset(FILES) - {"demo", "program"},
    "migrate": frozenset({"row 0"}),  # it looks names up in the modules of plait, and imports none of them by itself
    "program": frozenset(FILES) - {"program"},
}

# Third-party packages, and the areas that may import them. What is not named here may be imported nowhere.
OWNERS: dict[str, frozenset[str]] = {
    "jax": frozenset(FILES),
    "jaxlib": frozenset({"row 0"}),
    "numpy": frozenset(FILES),
    "typing_extensions": frozenset(FILES),
    "optax": frozenset({"training", "demo"}),
    "orbax": frozenset({"checkpoint"}),
    "tensorstore": frozenset({"checkpoint"}),
    "safetensors": frozenset({"checkpoint", "export"}),
    "flax": frozenset({"bridge"}),
    "libcst": frozenset({"migrate"}),
    "msgpack": frozenset({"bridge"}),
    "tensorflow": frozenset({"export"}),
    "jax2onnx": frozenset({"export"}),
    "onnx": frozenset({"export"}),
    "onnxruntime": frozenset({"export"}),
    "ai_edge_litert": frozenset({"export"}),
    "exchange": frozenset({"export"}),  # export/runners/exchange.py, as its neighbours see it in their own processes
    "rich": frozenset({"inspect", "training", "demo", "program"}),
    "treescope": frozenset({"inspect"}),
    "sklearn": frozenset({"demo"}),
    "matplotlib": frozenset({"demo", "inspect"}),
}

# The one file that may ask for a version, or look into JAX's private modules.
QUIRKS = "_compat"
