"""Integer networks as graphs of the engine's operators, whose floats are whole numbers."""
