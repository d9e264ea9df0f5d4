"""How the three agents of the demo game were trained: simulations that make the data, networks
that learn to do the same in one pass, and the error that remains on land they have not seen."""
