"""The architecture as data: every file of src/plait, bottom-up, and what each folder may import.

A file imports from the areas that its own area names in ``MAY_IMPORT``, or from files that stand before it in
its own area's list. An area is a folder, or a group of the files that lie directly in src/plait; the files of a
folder inside an area belong to that folder's own area where it has one, and are one entry of the list where not.
"""

FILES: dict[str, tuple[str, ...]] = {
    "row 0": (
        "errors", "words", "notices", "lazy_names", "context_values", "deprecations", "paths", "scratch",
        "whole_writes", "dependencies", "origins", "typing", "_compat", "_public",
    ),
    "core/objects": (
        "clock", "named", "statics", "foreign_reads", "plain_holders", "trace_guard", "filters", "repr", "settings",
        "variable_metadata",
        "cells", "layer_cells", "operators", "lost_writes", "metadata_methods", "variables", "variable_kinds",
        "variable_names", "node_info", "nodes", "bound_methods", "layers_once",
        "node_predicates", "visit", "same_leaf", "nesting", "state", "state_functions", "pure_dicts", "attributes",
        "sowing", "jax_flattening", "module_repr", "hidden_statics",
        "pytree", "modes", "module", "containers", "rngs",
    ),
    "core/graph": (
        "graphdef", "diff", "flatten", "identities", "axes", "plan", "state_leaves", "refills", "unflatten",
        "closures", "walks", "locate", "captives",
    ),
    "core/functional": (
        "graph_state", "split", "merge", "update", "pop", "traversal", "update_context", "proxy_caller",
    ),
    "core/tools": (
        "config", "dtypes", "views", "path_patterns", "method_observers", "labelled_calls", "every_layer", "stacking",
        "unrolled_loops", "module_names", "layer_scopes", "stack_records", "capture", "nonfinite", "parts", "surgery",
    ),
    "core": (),
    "transforms/call": (
        "names", "prefixes", "aliasing", "prefix_trees", "policy", "gather", "arguments", "outcome", "enter",
        "functions", "captures", "guards", "leave", "kept", "loop_rules", "body", "refused", "write_back", "traces",
        "call",
    ),
    "transforms/stored": (
        "codes", "values", "descriptions", "sources", "environment", "folder", "forms", "outside", "names",
        "packages", "reads",
    ),
    "transforms/jit": (
        "shardings", "compiled", "stablehlo", "stored", "failures", "dispatch", "stages", "shapes", "function",
    ),
    "transforms": (
        "axis_names", "selections", "autodiff", "output_gradients", "tangent_trees", "tangents", "jacobians",
        "rule_calls", "custom_rules", "batching", "loops", "layer_scan", "branches", "sharded",
        "remat", "rng_splits", "reseeding", "lax_map",
    ),
    "partitioning": (
        "axis_rules", "mesh", "specs", "shardings", "creation", "activations", "recipes", "rule_checks",
        "processes", "boxes", "spmd",
    ),
    "compat": (
        "modes", "door", "functions", "transforms", "partials", "tree_states", "graph", "statelib",
        "variablelib", "fixed", "mappings", "reprs", "small_functions", "traces", "private_names", "old_methods",
        "flax_modules", "flax_paths",
    ),
    "nn": (
        "masks", "promotion", "checks", "initializers", "activations",
        "prelu", "linear", "conv", "embedding", "norm", "reparametrisation", "dropout", "rotary", "dot_product",
        "kv_cache", "attention", "cells", "recurrent", "pooling", "lora", "sequential", "per_layer",
        "recomputed_parts", "stack", "stack_conversion",
    ),
    "checkpoint": (
        "layout", "keep", "leaf_descriptions", "reading", "stacked_leaves", "together", "positions", "orbax", "stored",
        "plain", "writer", "checkpoints", "safetensors", "orbax_trees",
    ),
    "bridge/variables": ("collection_types", "nnx_meta", "boxed_variables", "collections"),
    "bridge/wrappers": (
        "linen", "rngs", "lazy", "init_apply", "stored_modules", "scope", "to_nnx", "linen_wrapper", "as_linen",
    ),
    "bridge/module": ("running", "children", "compact_module"),
    "bridge": ("interop", "partitioning", "numpyro_modules"),
    "convert": (
        "linen_bytes", "sources", "name_map", "layouts", "torch_layouts", "linen_layouts", "counterparts", "report",
        "matching", "linen_scans", "conversion", "torch_weights",
    ),
    "export/program": (
        "checks", "numbers", "weights", "sizes", "input_spec", "arguments", "program", "operations", "rewriting",
        "lowering", "unsupported",
    ),
    "export/tensorflow": ("names", "portable", "readers", "calling", "functions"),
    "export/formats": (
        "whole_write", "descriptions", "options", "stablehlo_loader", "manifest", "stablehlo", "saved_model",
        "onnx_pooling", "onnx", "litert", "table",
    ),
    "export/proof": ("describe", "runners", "apart", "compare", "report", "prove"),
    "export/orbax": (
        "constants", "typing", "config", "obm_configs", "conversion", "size_variants", "dtensor_utils",
        "variable_trees", "jax_module", "signatures", "data_processors", "pipeline", "serving", "warmup",
        "export_manager", "exported_maps", "utils", "validation_report", "validation_job", "validation",
    ),
    # The door for all formats, and the modules of Orbax Export under their own paths.
    "export": (
        "saving", "config", "constants", "data_processors", "dtensor_utils", "export_manager", "jax_module",
        "obm_configs", "typing", "utils", "validate",
    ),
    "inspect": ("display", "tables", "sharding", "retrace", "hlo", "buffers", "cost", "tabulate"),
    "explorer": (
        "statistics", "outline", "calls", "costs", "graphs", "stored", "description", "page",
    ),
    "comparison": (
        "calls", "plait_runs", "flax_runs", "torch_runs", "names", "differences", "departures", "parameters",
        "formulas", "causes", "comparison",
    ),
    "training": (
        "optimizer", "learning_rates", "loss_scaling", "train_state", "metric", "classification", "metrics",
        "ema", "progress", "batches", "callbacks", "counts", "timed_data", "loggers", "accumulation", "loop",
    ),
    "demo": ("images", "figures", "exports", "runs", "table", "digits", "corpus", "compression", "byte_gpt", "gpt"),
    "migrate": ("known", "uses", "rewrite", "files"),
    "program": ("launch", "as_flax", "cli_export", "cli_compare", "cli_explore", "cli_compile", "cli"),
}  # fmt: skip

CORE = frozenset({"row 0", "core/objects", "core/graph", "core/functional", "core/tools"})
TRANSFORMS = frozenset({"transforms/call", "transforms/stored", "transforms/jit", "transforms"})
EXPORT = frozenset({"export/program", "export/tensorflow", "export/formats", "export/proof", "export/orbax"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "row 0": frozenset(),
    "core/objects": frozenset({"row 0"}),
    "core/graph": frozenset({"row 0", "core/objects"}),
    "core/functional": frozenset({"row 0", "core/objects", "core/graph"}),
    "core/tools": CORE - {"core/tools"},
    "core": frozenset(),
    "transforms/call": CORE,
    "transforms/stored": CORE | {"transforms/call"},
    "transforms/jit": CORE | {"transforms/call", "transforms/stored"},
    "transforms": CORE | {"transforms/call", "transforms/jit"},
    "partitioning": CORE,
    "compat": CORE | TRANSFORMS | {"partitioning"},
    "nn": CORE | TRANSFORMS | {"partitioning"},
    "checkpoint": CORE | TRANSFORMS | {"partitioning"},
    "bridge/variables": CORE | {"partitioning"},
    "bridge/wrappers": CORE | TRANSFORMS | {"partitioning", "bridge/variables"},
    "bridge/module": CORE | {"partitioning", "bridge/variables", "bridge/wrappers"},
    # The names of convert are found in bridge too.
    "bridge": CORE
    | TRANSFORMS
    | {
        "partitioning",
        "bridge/variables",
        "bridge/wrappers",
        "bridge/module",
        "convert",
    },
    # It states layouts of the standard layers, and reads files in the formats of checkpoint/.
    "convert": CORE | TRANSFORMS | {"partitioning", "nn", "checkpoint"},
    "export/program": CORE,
    "export/tensorflow": frozenset({"row 0", "export/program"}),
    "export/formats": CORE | {"export/program", "export/tensorflow"},
    "export/proof": frozenset({"row 0", "export/program", "export/formats"}),
    "export/orbax": frozenset({"row 0"}) | EXPORT - {"export/orbax"},
    "export": EXPORT | {"row 0"},
    "inspect": CORE | TRANSFORMS | {"partitioning"},
    "explorer": CORE | TRANSFORMS | {"partitioning", "inspect", "checkpoint", "export/formats"},
    # It reads a name map as convert does, and measures differences as proofs of exports do.
    "comparison": CORE | {"convert", "export/proof"},
    "training": CORE | TRANSFORMS | {"partitioning", "checkpoint"},
    "demo": frozenset(FILES) - {"demo", "program"},
    # It looks names up in the modules of plait, and imports none of them by itself.
    "migrate": frozenset({"row 0", "compat"}),
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
    "safetensors": frozenset({"checkpoint", "export/formats"}),
    "flax": frozenset({"bridge/wrappers", "bridge", "comparison"}),
    "torch": frozenset({"comparison"}),
    "libcst": frozenset({"migrate"}),
    "numpyro": frozenset({"bridge"}),
    "msgpack": frozenset({"convert"}),
    "tensorflow": frozenset({"export/formats"}),
    "jax2onnx": frozenset({"export/formats"}),
    "onnx": frozenset({"export/formats"}),
    "onnxruntime": frozenset({"export/formats"}),
    "ai_edge_litert": frozenset({"export/formats"}),
    "exchange": frozenset(
        {"export/proof"}
    ),  # export/proof/runners/exchange.py, as its neighbours see it in their own processes
    "treescope": frozenset({"inspect"}),
    "rich": frozenset({"inspect", "training", "demo", "program"}),
    "sklearn": frozenset({"demo"}),
    "tensorboardX": frozenset({"training"}),
    "matplotlib": frozenset({"demo", "inspect"}),
}

# The one file that may ask for a version, or look into JAX's private modules.
QUIRKS = "_compat"
