"""Two processes that compute the same tiles of the integer world and compare hashes at every tick.

They run on two machines, or on the GPU and the CPU of one.
"""
