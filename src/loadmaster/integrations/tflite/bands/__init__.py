"""Networks in bands of rows on unmodified TFLM, in which feature maps never exist as a whole."""
