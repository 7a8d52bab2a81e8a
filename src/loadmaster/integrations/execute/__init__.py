"""Runs plans with every tensor at its planned address, and compares results with the whole
model."""
