"""Efforts of searches in tests: little, and none beyond planning separately."""

from dataclasses import replace

from loadmaster.core.effort import Effort

TEST = Effort.TEST
SEPARATE = replace(TEST, name="separate", evaluations=0)
