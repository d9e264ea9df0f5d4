"""The kernels of ``matmul`` and ``linear``."""
