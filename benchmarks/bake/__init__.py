"""What a bake costs besides its tiles: ``python -m benchmarks.bake overhead|memory|schedule``."""
