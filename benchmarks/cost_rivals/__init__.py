"""Other people's cost models on the same layers and arrays, each in a process of its own."""
