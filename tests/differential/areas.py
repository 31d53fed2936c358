"""The strategies by name."""

from __future__ import annotations

from tests.differential.strategies.functional import functional_programs
from tests.differential.strategies.graph import graph_programs
from tests.differential.strategies.layers import layer_programs
from tests.differential.strategies.rngs import rngs_programs
from tests.differential.strategies.sharding import sharding_programs
from tests.differential.strategies.sharing import sharing_programs
from tests.differential.strategies.training import training_programs
from tests.differential.strategies.transforms import transform_programs
from tests.differential.strategies.views import view_programs

AREAS = {
    "layers": layer_programs,
    "graph": graph_programs,
    "transforms": transform_programs,
    "training": training_programs,
    "rngs": rngs_programs,
    "views": view_programs,
    "sharing": sharing_programs,
    "sharding": sharding_programs,
    "functional": functional_programs,
}
