"""Best fit: buffers in the order in which they are born, each into the tightest gap, as
TensorFlow's BFC allocator does."""

from loadmaster.allocation.native import NATIVE

STRATEGY = NATIVE
