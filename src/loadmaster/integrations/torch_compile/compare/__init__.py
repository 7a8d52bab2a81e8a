"""Measured comparisons of a planned model with its rivals."""
