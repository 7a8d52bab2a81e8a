"""Cases of a test as a table of texts."""


def cases(text):
    r"""Rows, each with its cells between bars, in which ``\n`` ends a line; a row goes on after a
    backslash at its end, and those that begin with ``#`` are comments."""
    rows = [row.strip() for row in text.replace("\\\n", "").splitlines()]
    return [
        tuple(cell.strip().replace(r"\n", "\n") for cell in row.split("|"))
        for row in rows
        if row and not row.startswith("#")
    ]


def column(text):
    """The rows of a table of one column."""
    return [cell for (cell,) in cases(text)]
