"""Several memories: which one each buffer is in, at which address, and what spilling costs."""
