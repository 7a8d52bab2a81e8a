"""The table of other planners' arenas in a narrow terminal."""

from loadmaster.cli.output import print_tables
from loadmaster.report.floor import floor_table


def test_names_of_arenas_are_not_broken_at_80_columns(capsys):
    row = {
        "buffers": 1234,
        "theirs": 123_456_789,
        "theirs_stated": None,
        "peak": 120_456_789,
        "lower_bound": 120_456_789,
        "status": "optimal",
        "verdict": "below the bound: buffers share memory in a way that the dump does not show",
        "violations": [],
    }
    names = ["allocation 3: preallocated-temp", "parameter 1"]
    print_tables(floor_table([row | {"name": name} for name in names]))
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert "123,456,789" in shown
