"""Parts of a stage report under the stage's name, one after another."""

from loadmaster.core.progress import no_progress, part_of


def test_equal_parts_make_a_whole():
    heard = []
    for number in range(4):
        report = part_of(lambda *said: heard.append(said), "mapping", number, 4)
        report("solving", 0.0)
        report("packing", 1.0)
    assert {stage for stage, _ in heard} == {"mapping"}
    assert [share for _, share in heard] == [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


def test_nobody_need_listen():
    assert no_progress("mapping", 0.5) is None
