"""The tiles of the world, their noise and their selection around a camera, without any network."""
