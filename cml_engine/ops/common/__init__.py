"""Functions that several families of operators share."""
