"""Quantized ONNX models as integer networks: docs/onnx.md, "Quantized models"."""
