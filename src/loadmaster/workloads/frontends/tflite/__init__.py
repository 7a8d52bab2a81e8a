"""The TensorFlow Lite frontend: an own reader of the file format, and networks from what it
holds."""
