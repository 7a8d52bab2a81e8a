"""Which of two memories each tensor is in, and when it moves, on a machine of one core: AutoTM
(ASPLOS 2020)."""
