"""Two processes that make the same tiles and compare hashes at every tick: the integer world on two
machines, or on the GPU and the CPU of one."""
