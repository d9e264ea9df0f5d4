"""The device's side of a frame scheduler."""
