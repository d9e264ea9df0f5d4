"""The example network: trained, exported from PyTorch, and measured on pictures it never saw."""
