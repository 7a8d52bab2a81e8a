"""Cost models of jobs, one a file; :mod:`loadmaster.cost.registry` knows them by name."""
