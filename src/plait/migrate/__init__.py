"""The command ``plait migrate``: rewrites programs that import Flax NNX to import plait.

Importing this package does not import LibCST; rewriting does.
"""
