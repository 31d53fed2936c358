"""One file for each format, the table of them, and the door that writes what is asked for."""
