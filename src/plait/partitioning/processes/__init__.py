"""The processes of one run: connecting them, the texts that they leave for each other, and those that stop."""
