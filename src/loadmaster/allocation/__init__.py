"""Which address each buffer gets, and what must be done before an address is used again."""

from loadmaster.allocation.first_fit import most_alive, pack, pack_all
from loadmaster.allocation.reuse import reuse_pairs

__all__ = ["most_alive", "pack", "pack_all", "reuse_pairs"]
