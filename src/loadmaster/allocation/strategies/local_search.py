"""Local search over orders: buffers that reach the peak move forward in the order in which gaps are
filled."""

from loadmaster.allocation.native import NATIVE

STRATEGY = NATIVE
