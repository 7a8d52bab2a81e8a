"""Costs of kernel sequences: rooflines, and times measured on a machine."""
