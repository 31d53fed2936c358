"""The architecture as data: the rooms of src/plait from the bottom up, and what each may import.

A room is a folder at the top of src/plait. Each may import those that its row names, ``errors.py``, ``typing.py`` and
``_public.py``, and other files of its own. No file may import itself through others.
"""

MAY_IMPORT: dict[str, frozenset[str]] = {
    room: frozenset(below.split())
    for room, below in {
        "util": "",
        "core": "util",
        "transforms": "util core",
        "partitioning": "util core",
        "nn": "util core transforms partitioning",
        "edit": "util core transforms nn",
        "checkpoint": "util core partitioning",
        "convert": "util core nn edit checkpoint",
        "export": "util core edit checkpoint",
        "inspect": "util core transforms partitioning nn edit checkpoint convert export",
        "training": "util core transforms partitioning edit checkpoint inspect",
        "generation": "util core transforms edit",
        "models": "util core transforms partitioning nn edit checkpoint convert",
        "flax": "util core transforms partitioning nn edit convert inspect",
        "cli": "util core partitioning checkpoint export inspect flax",
    }.items()
}

# Third-party packages and the rooms that may import them. What is not named here may be imported nowhere.
OWNERS: dict[str, frozenset[str]] = {
    package: frozenset(rooms.split())
    for package, rooms in {
        "jax": " ".join(MAY_IMPORT),
        "numpy": " ".join(MAY_IMPORT),
        "typing_extensions": " ".join(MAY_IMPORT),
        "jaxlib": "util",
        "optax": "training",
        "orbax": "checkpoint",
        "tensorstore": "checkpoint",
        "safetensors": "checkpoint",
        "xxhash": "checkpoint",
        "msgpack": "convert",
        "flax": "flax inspect",
        "torch": "inspect",
        "treescope": "inspect",
        "matplotlib": "inspect",
        "rich": "inspect training cli",
        "tensorboardX": "training",
        "tensorflow": "export",
        "jax2onnx": "export",
        "onnx": "export",
        "onnxruntime": "export",
        "ai_edge_litert": "export",
        "exchange": "export",  # export/proof/runners/exchange.py, as its neighbours see it in their own processes
    }.items()
}

# The one file that may ask for a version, or look into JAX's private modules.
QUIRKS = ("util", "jax_versions")
