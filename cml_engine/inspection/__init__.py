"""Looking inside a run: its tensors as files, the first value that is no number, the passes apart
from the kernels."""
