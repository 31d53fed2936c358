"""Programs that show plait at work: ``plait demo digits``."""
