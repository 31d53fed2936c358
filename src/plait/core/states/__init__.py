"""Operations on states: plain dicts of values, functions of states, and calls of a split model."""
