"""``conv`` and ``deconv``."""
