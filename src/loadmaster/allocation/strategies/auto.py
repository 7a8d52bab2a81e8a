"""Auto: simple orders, a short exact search, then exact search, blocks and repacking in turns with
slices of work that grow.

It only ever accepts lower packings, so it is never worse than the simple orders:
``native/allocation/portfolio.cpp``.
"""

from loadmaster.allocation.native import NATIVE

STRATEGY = NATIVE
