"""The command ``plait``."""
