"""Operators that read between elements: resampling, regions of interest, warping."""
