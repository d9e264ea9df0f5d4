"""Imports quantized ONNX models as integer networks: docs/your_model.md, "Quantized models"."""
