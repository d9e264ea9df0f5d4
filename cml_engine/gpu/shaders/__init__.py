"""HLSL -> SPIR-V and WGSL: sources, compiler, cache on disk."""
