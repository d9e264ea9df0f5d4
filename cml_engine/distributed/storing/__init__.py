"""The store of a bake: a Zarr group, its chunks written whole, each unit with its SHA-256."""
