"""GPU time: timestamps of steps and of frames."""
