"""three.js as the host, on the networks' device: ``python -m examples.three_host FOLDER``."""
