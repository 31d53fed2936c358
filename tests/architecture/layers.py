"""The architecture as data: what each folder of src/plait may import, and which folders are guests of the heart.

A file imports from the areas that its own area names in ``MAY_IMPORT``, and from other files of its own area. An area
is a folder, or a group of the files that lie directly in src/plait; the files of a folder inside an area belong to that
folder's own area where it has one. No file may import itself through others: within an area too imports run one way.
"""

# The files that lie directly in src/plait. Those of the ground stay there because users import them, or because
# nothing else may ask what they ask; all others of the ground are in the folder of that name.
LOOSE: dict[str, tuple[str, ...]] = {
    "ground": ("errors", "typing", "_compat", "_public"),
    "program": (
        "guests",
        "launch",
        "as_flax",
        "cli_export",
        "cli_compare",
        "cli_explore",
        "cli",
    ),
}

HEART = frozenset(
    {"core", "core/objects", "core/graph", "core/functional", "transforms/call", "transforms/jit", "transforms"}
)
# Each can be removed: the heart works without it, and a test of the heart runs so.
GUESTS = frozenset({"text", "states", "sowing", "stacks", "surgery", "observing"})

CORE = frozenset({"ground", "core", "core/objects", "core/graph", "core/functional"})
TRANSFORMS = frozenset({"transforms/call", "transforms/jit", "transforms"})
HEART = (CORE - {"ground"}) | TRANSFORMS
EXPORT = frozenset({"export/program", "export/tensorflow", "export/formats", "export/proof"})
LOWER = CORE | TRANSFORMS | GUESTS | {"partitioning"}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "ground": frozenset(),
    "core/objects": frozenset({"ground", "core"}),
    "core/graph": frozenset({"ground", "core", "core/objects"}),
    "core/functional": frozenset({"ground", "core", "core/objects", "core/graph"}),
    "core": frozenset({"ground"}),
    "transforms/call": CORE,
    "transforms/jit": CORE | {"transforms/call"},
    "transforms": CORE | {"transforms/call", "transforms/jit"},
    "text": CORE,
    "states": CORE,
    "sowing": CORE,
    "stacks": CORE | TRANSFORMS | {"sowing"},
    "surgery": CORE | TRANSFORMS | {"states", "stacks"},
    "observing": CORE | TRANSFORMS | {"sowing", "stacks", "surgery"},
    "partitioning": CORE,
    "compat": LOWER,
    "nn": LOWER,
    "checkpoint": LOWER,
    "bridge/variables": CORE | {"sowing", "partitioning"},
    "bridge/wrappers": CORE | TRANSFORMS | {"states", "sowing", "partitioning", "bridge/variables"},
    "bridge/module": CORE | {"surgery", "sowing", "partitioning", "bridge/variables", "bridge/wrappers"},
    # The names of convert are found in bridge too.
    "bridge": CORE
    | TRANSFORMS
    | {"states", "surgery", "partitioning", "bridge/variables", "bridge/wrappers", "bridge/module", "convert"},
    # It states layouts of the standard layers, and reads files in the formats of checkpoint/.
    "convert": LOWER | {"nn", "checkpoint"},
    "export/program": CORE | {"states", "observing"},
    "export/tensorflow": frozenset({"ground", "export/program"}),
    # Bundles store their weights as checkpoint/ writes safetensors.
    "export/formats": CORE | {"observing", "export/program", "export/tensorflow", "checkpoint"},
    "export/proof": frozenset({"ground", "export/program", "export/formats"}),
    "export": EXPORT | {"ground"},
    "inspect": LOWER,
    "generation": LOWER,
    "explorer": LOWER | {"inspect", "checkpoint", "export/formats"},
    # It reads a name map as convert does, and measures differences as proofs of exports do.
    "comparison": CORE | {"sowing", "surgery", "observing", "convert", "export/proof"},
    "training": LOWER | {"checkpoint"},
}
MAY_IMPORT["program"] = frozenset(MAY_IMPORT)

# Third-party packages, and the areas that may import them. What is not named here may be imported nowhere.
OWNERS: dict[str, frozenset[str]] = {
    "jax": frozenset(MAY_IMPORT),
    "jaxlib": frozenset({"ground"}),
    "numpy": frozenset(MAY_IMPORT),
    "typing_extensions": frozenset(MAY_IMPORT),
    "optax": frozenset({"training"}),
    "orbax": frozenset({"checkpoint"}),
    "tensorstore": frozenset({"checkpoint"}),
    "safetensors": frozenset({"checkpoint"}),
    "flax": frozenset({"bridge/wrappers", "bridge", "comparison"}),
    "torch": frozenset({"comparison"}),
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
    "rich": frozenset({"inspect", "observing", "training", "program"}),
    "tensorboardX": frozenset({"training"}),
}

# The one file that may ask for a version, or look into JAX's private modules.
QUIRKS = "_compat"
