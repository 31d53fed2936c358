"""Published models of every family, drawn small: run with ``python -m tests.models.oracle`` where torch is."""
