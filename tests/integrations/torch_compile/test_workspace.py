"""Temporaries of a kernel share a workspace: each lies where it fits lowest when it is made."""

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.integrations.torch_compile.kernel_profile import ALIGNMENT, pack

SIZES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5 * ALIGNMENT)), max_size=12)


@given(SIZES)
def test_each_lies_at_the_lowest_address_that_is_free(drawn: list[tuple[int, int]]) -> None:
    lives = [(start, start + length, size) for start, (length, size) in enumerate(drawn)]
    offsets, top = pack(lives)
    placed: list[tuple[int, int, int, int]] = []
    for start, end, size in lives:
        room = -(-size // ALIGNMENT) * ALIGNMENT
        beside = [
            (low, high)
            for begin, until, low, high in placed
            if until > start and begin < end and high > low
        ]
        free = [
            at
            for at in (0, *(high for _, high in beside))
            if all(at + room <= low or at >= high for low, high in beside)
        ]
        assert offsets[start] == (min(free) if room else 0)
        placed.append((start, end, offsets[start], offsets[start] + room))
    assert top == max((high for *_, high in placed), default=0)
