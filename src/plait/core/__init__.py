"""The crossing between a graph of objects and a pure function of arrays: variables, graphs, state."""
