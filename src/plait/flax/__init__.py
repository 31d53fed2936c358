"""Flax: its NNX modes and names (``compat``), Linen (``bridge``), and programs for it unedited (``as_flax``)."""
