"""Plans that run: a backend for ``torch.compile`` that keeps a budget of fast memory.

Importing this package does not import PyTorch.
"""
