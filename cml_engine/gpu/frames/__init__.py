"""The GPU side of a frame scheduler: it records jobs into frames and collects their outputs."""
