"""What a game does not need while it runs: simulation, replay, measurement, pictures, traces."""
