"""Which address each buffer gets: TelaMalloc (ASPLOS 2023), exact search and simpler strategies,
with proofs."""
