"""The kernels that a ``conv`` or ``deconv`` can have, a module each."""
