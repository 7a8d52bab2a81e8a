"""Which address each buffer gets, and what must be done before an address is used again."""

from loadmaster.allocation.first_fit import pack
from loadmaster.allocation.reuse import reuse_pairs

__all__ = ["pack", "reuse_pairs"]
