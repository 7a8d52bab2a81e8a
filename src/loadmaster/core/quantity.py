"""A number with its unit, whichever that is: ``"8 MiB"``, ``"34 GB/s"``, ``"1 GHz"``, ``"3"``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadmaster.core import units
from loadmaster.core.errors import UnitError

_PARSERS: dict[str, Callable[[str], float]] = {
    "FLOP/s": units.parse_flops,
    "J/B": units.parse_joules_per_byte,
    "B/s": units.parse_bandwidth,
    "Hz": units.parse_frequency,
    "W": units.parse_watts,
    "B": units.parse_bytes,
    "min": units.parse_seconds,
    "s": units.parse_seconds,
}
"""By how a text ends; longer endings first."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """So many of a unit without a prefix, such as bytes; ``unit`` is empty for plain numbers."""

    value: float
    unit: str = ""

    @property
    def exact(self) -> str:
        """The number without its unit, so that it reads as the same number again; whole ones
        without a point."""
        return str(int(self.value) if float(self.value).is_integer() else self.value)

    def __str__(self) -> str:
        """Return it for people, with a fitting prefix and three significant digits."""
        if self.unit == "B":
            return units.format_bytes(self.value)
        if self.unit == "s":
            return units.format_seconds(self.value)
        if self.unit in ("B/s", "Hz", "FLOP/s") or (self.unit == "W" and self.value >= 1):
            return units.format_rate(self.value, self.unit)
        return f"{self.exact} {self.unit}".rstrip()


def parse_quantity(text: str) -> Quantity:
    """Read a number with a unit that targets have, or none; raises
    :class:`~loadmaster.core.errors.UnitError`."""
    stripped = text.strip()
    for ending, parse in _PARSERS.items():
        if stripped.endswith(ending):
            return Quantity(parse(stripped), "s" if ending == "min" else ending)
    try:
        return Quantity(int(stripped) if stripped.isdecimal() else float(stripped))
    except ValueError:
        raise UnitError(
            f"{text!r} is not a number with a unit, such as '8 MiB', '34 GB/s', '1 GHz' or 3"
        ) from None
