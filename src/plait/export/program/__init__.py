"""Programs: pure functions of arrays by name, and their lowering."""
