"""Reads the plans of other memory planners from their dumps, and compares them with Loadmaster's
packings of the same buffers."""
