"""Compilation of HLSL to SPIR-V and WGSL: sources, compiler, disk cache."""
