"""Whether the integers of a model, which have 64 bits, fit into the network's 32."""
