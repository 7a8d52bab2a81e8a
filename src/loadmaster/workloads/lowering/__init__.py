"""From graphs to jobs: fuse elementwise work into producers, split what does not fit, instantiate
mini-batches."""
