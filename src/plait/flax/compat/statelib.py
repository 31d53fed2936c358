"""The namespace ``plait.statelib``: nested and flat states, and functions on them."""

from ...core.states.pure_dicts import (
    as_pure as as_pure,
    replace_by_pure_dict as replace_by_pure_dict,
    restore_int_paths as restore_int_paths,
    to_pure_dict as to_pure_dict,
)
from ...core.states.state import (
    FlatState as FlatState,
    State as State,
    from_flat_state as from_flat_state,
    to_flat_state as to_flat_state,
)
from ...core.states.state_functions import (
    diff as diff,
    filter_state as filter_state,
    map_state as map_state,
    merge_state as merge_state,
    split_state as split_state,
)
