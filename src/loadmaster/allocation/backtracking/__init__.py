"""Where TelaMalloc goes back to after a dead end: learned models, and how they are fitted."""
