"""The implementation of ``cml selftest``: proves the engine on a device, without a checkout."""
