"""The overlay's panels, a module for each."""
