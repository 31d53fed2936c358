"""What is exported: a pure function of arrays by name, and how it is lowered."""
