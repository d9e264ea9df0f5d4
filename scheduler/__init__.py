"""Runs networks inside frames, within a budget of milliseconds.

Imports neither wgpu nor NumPy: every decision is a function of plans, costs, a clock and history.
"""
