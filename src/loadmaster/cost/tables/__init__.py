"""Tables of measured or published costs, as CSV."""
