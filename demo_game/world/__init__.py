"""Where tiles are and what their land begins as: pure functions of seed and coordinates."""
