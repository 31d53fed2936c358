"""The interface of Orbax Export: its names and arguments, for the same programs."""
