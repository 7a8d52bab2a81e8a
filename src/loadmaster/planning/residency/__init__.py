"""Which tensors stay in the fast memory of a given schedule: the separate pipeline."""
