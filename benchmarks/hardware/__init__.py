"""Compiles kernels with the vendors' compilers and models their time; no card is needed."""
