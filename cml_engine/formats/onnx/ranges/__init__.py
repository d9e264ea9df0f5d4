"""Range analysis: finds integers of a model, 64 bits in ONNX, that may exceed the network's 32."""
