"""What modules sow while they run, and the names of kinds of variables."""
