"""Groups as black-box optimisers see them: points of a unit cube, one coordinate per gene."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.mapping.group_search import MappingSearch


def dimensions(search: MappingSearch) -> int:
    """Genes of a group: a core and a priority for every job."""
    return 2 * search.group.jobs


def values(search: MappingSearch, points: Floats) -> Floats:
    """Scores of points, a row each: the first half of the coordinates are cores, the second half
    priorities. What is beyond the budget scores 1e300, as libraries take no infinite scores."""
    cores, priorities = np.hsplit(np.clip(points, 0.0, np.nextafter(1.0, 0.0)), 2)
    scores = search.scores(
        (cores * search.group.cores).astype(np.int32), (priorities * 2.0**32).astype(np.uint32)
    )
    return np.where(np.isfinite(scores), scores, 1e300)


def mirrored(points: Floats) -> Floats:
    """Points mirrored at the faces of the unit cube until they are inside."""
    folded = np.abs(points) % 2.0
    return np.asarray(np.where(folded > 1.0, 2.0 - folded, folded))
