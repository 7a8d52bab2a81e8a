"""Memory planners of compilers and runtimes beside Loadmaster's: ``python -m
benchmarks.planners``."""
