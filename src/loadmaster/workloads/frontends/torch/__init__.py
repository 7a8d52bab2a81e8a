"""PyTorch modules and training steps, captured without memory."""
