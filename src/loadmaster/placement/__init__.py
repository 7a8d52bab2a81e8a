"""Which memory each tensor lives in, and when it is copied."""

from loadmaster.placement.between_kernels import place_between_kernels
from loadmaster.placement.resident import keep_resident, optimistic, resident, saved_seconds
from loadmaster.placement.staged import stage_copies

__all__ = ["keep_resident", "optimistic", "place_between_kernels", "resident", "saved_seconds", "stage_copies"]
