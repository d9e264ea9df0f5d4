"""Tools that a game does not need while it runs: simulation, replay, measurement, plots, traces."""
