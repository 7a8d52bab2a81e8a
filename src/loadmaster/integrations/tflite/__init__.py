"""Hand-over to TensorFlow Lite for Microcontrollers (TFLM): addresses of tensors, planned here, in
the file that it runs."""
