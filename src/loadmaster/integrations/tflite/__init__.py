"""Export to TensorFlow Lite for Microcontrollers (TFLM): files with planned tensor addresses."""
