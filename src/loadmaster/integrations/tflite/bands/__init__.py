"""Networks that run in bands of rows on unmodified TFLM, so that feature maps never exist as a
whole."""
