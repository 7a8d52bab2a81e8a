"""Exact: the native branch and bound over canonical packings, until the proof is complete or the
nodes are spent."""

from loadmaster.allocation.native import NATIVE

STRATEGY = NATIVE
