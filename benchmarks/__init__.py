"""Speed of this engine beside others, on one network in one run: ``python tasks.py bench``."""
