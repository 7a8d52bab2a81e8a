"""Cores, order, memories, transfers and addresses of whole networks, decided together."""
