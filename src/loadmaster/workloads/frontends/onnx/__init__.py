"""ONNX files: shapes, order, and the arithmetic of every operator."""
