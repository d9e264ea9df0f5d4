"""An existing engine as the host, pygfx: ``python -m examples.pygfx_host``."""
