"""Best fit: buffers in the order in which they are born, each into the tightest gap, as
TensorFlow's BFC allocator does."""

from loadmaster.allocation.strategies.registry import NATIVE

STRATEGY = NATIVE
