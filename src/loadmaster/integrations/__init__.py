"""Plans in the hands of other programs, one folder each."""
