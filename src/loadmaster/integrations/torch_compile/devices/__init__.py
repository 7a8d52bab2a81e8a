"""Fast and slow memory of a CPU and of a GPU, and how tensors get their planned addresses."""
