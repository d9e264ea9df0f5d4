"""Parts of the world made before the game: on a cluster, into a Zarr store that it flies over."""
