"""IREE: reads packing operations of transient memory from the compiler's text, and replaces them by
planned addresses."""
