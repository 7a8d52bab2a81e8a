"""Kernels whose operands do not fit into fast memory at once: run block by block on tensors that
rest in the slow memory."""
