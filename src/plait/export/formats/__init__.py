"""One file per format, and the table of formats."""
