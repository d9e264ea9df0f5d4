"""Range analysis: finds integers of a model, which have 64 bits, that may leave the network's
32."""
