"""Auto: a short exact search, then the simple strategies, exact search from the best of them, and
the others with what is left.

It begins with every packing that the simple ones find and only ever accepts lower ones, so it is
never worse than they are: ``native/allocation/portfolio.cpp``.
"""

from loadmaster.allocation.search_state import NATIVE

STRATEGY = NATIVE
