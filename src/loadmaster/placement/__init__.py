"""Which memory each tensor lives in, and when it is copied."""

from loadmaster.placement.between_kernels import place_between_kernels
from loadmaster.placement.overlapping import place_overlapping
from loadmaster.placement.resident import keep_resident, optimistic, resident, saved_seconds
from loadmaster.placement.staged import stage_copies

__all__ = ["keep_resident", "optimistic", "place_between_kernels", "place_overlapping", "resident", "saved_seconds", "stage_copies"]
