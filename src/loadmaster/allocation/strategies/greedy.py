"""Greedy: a family of orders, each buffer at the lowest free gap or the tightest, the best packing
kept; many buffers also by sweeps over time.

One order, by size, is TensorFlow Lite's; the powers of the peak load in a buffer's lifetime favour
what lives through crowded instants.
"""

from loadmaster.allocation.native import NATIVE

STRATEGY = NATIVE
