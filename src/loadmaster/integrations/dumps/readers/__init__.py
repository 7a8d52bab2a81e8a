"""Readers of dumps, one file for each planner."""
