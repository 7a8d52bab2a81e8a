"""IREE: the addresses that its compiler gives to slices of transient memory, read from its own text
and put into it."""
