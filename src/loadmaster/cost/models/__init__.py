"""Cost models of jobs, one a file; :mod:`loadmaster.cost.registry` finds them by name."""
