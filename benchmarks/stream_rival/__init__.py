"""Loadmaster beside Stream (Symons et al., arXiv 2212.10612): one network cut over four cores with
memories of their own."""
