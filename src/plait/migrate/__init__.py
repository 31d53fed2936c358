"""The command ``plait migrate``: programs that import Flax NNX are rewritten to import plait.

Importing this package does not load LibCST; rewriting does.
"""
