"""Which part of each operand of an ONNX operator a part of its result needs, and along which
dimensions the work divides."""
