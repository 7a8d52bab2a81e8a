"""Search over core, order, residency and transfers together: what is read once, kept on chip, and
fetched ahead."""
