"""Naive checks of finished plans that import records only and share nothing with the engines that
make them."""
