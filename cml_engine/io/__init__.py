"""Files of every kind but models: arrays, pictures, JSON, and where our own lie."""
