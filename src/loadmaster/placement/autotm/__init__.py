"""The integer programs and searches behind static, synchronous and asynchronous placement."""
