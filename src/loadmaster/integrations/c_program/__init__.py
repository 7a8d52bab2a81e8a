"""A plan as a program in C that runs it on a host: cores as threads, every tensor at its planned
address."""
