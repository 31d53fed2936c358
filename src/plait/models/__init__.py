"""Published models, made from the configs and weights that their publishers put beside each other in a folder."""
