"""Which operators are cut into pieces, along which dimensions, and in how many, by a model of what
the pieces take."""
