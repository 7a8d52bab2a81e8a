"""What others do, simulated on the same kernels, costs and limits: the strategies that a placement
has to beat."""
