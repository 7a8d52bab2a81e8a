"""Quantities with units: ``"8 MiB"``, ``"34 GB/s"``, ``"1 GHz"`` in; readable text out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import UnitError

PICOSECONDS = 10**12
"""In a second. Plans count time in whole picoseconds."""
FEMTOJOULES = 10**15
"""In a joule. Plans count energy in whole femtojoules."""

_DECIMAL = {"P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3, "": 1}
_BINARY = {"Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_RATES = _DECIMAL | {"K": 10**3}
_BYTES = _RATES | _BINARY
_FRACTIONS = {"": Decimal(1), "m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9")}
_PICO = _FRACTIONS | {"p": Decimal("1e-12")}
_FEMTO = _PICO | {"f": Decimal("1e-15")}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)?\s*")


@dataclass(frozen=True)
class _QuantityParser:
    """A kind of quantity, which is called to read one: its unit and the prefixes of it, and, for
    errors, what it is with an example."""

    unit: str
    prefixes: Mapping[str, int | Decimal]
    what: str
    example: str

    def exact(self, text: str | float) -> Decimal:
        """Number of base units in ``text``; a bare number is taken to be in base units."""
        what, unit, match = self.what, self.unit, _QUANTITY.fullmatch(str(text))
        if isinstance(text, bool) or match is None:
            raise UnitError(
                f"{text!r} is not {what}: write a number and a unit, such as {self.example!r}"
            )
        suffix = match[2] or ""
        prefix = suffix.removesuffix(unit)
        if (suffix and not suffix.endswith(unit)) or prefix not in self.prefixes:
            raise UnitError(
                f"{text!r} has the unit {suffix!r}, which is not {what}: write it like"
                f" {self.example!r}"
            )
        try:
            value = Decimal(match[1].replace("_", "")) * self.prefixes[prefix]
        except ArithmeticError:
            raise UnitError(f"{text!r} is not {what}: the number cannot be read") from None
        if value < 0:
            raise UnitError(f"{text!r} is less than nothing: write {what} such as {self.example!r}")
        if value > WHOLE_LIMIT:
            raise UnitError(f"{text!r} is too large for {what}: the largest is 2^62")
        return value

    def __call__(self, text: str | float) -> float:
        """Read a quantity; raises UnitError."""
        return float(self.exact(text))


_LEAST_BARE_RATE = 10**6
"""No machine is slower: a smaller rate without a unit was meant in another one."""


class _RateParser(_QuantityParser):
    """A quantity per second; more than zero, and not a small number without a unit."""

    def __call__(self, text: str | float) -> float:
        """Read a rate; raises UnitError."""
        value, meant = self.exact(text), str(text).strip()
        if float(value) < 1e-18:
            raise UnitError(f"{text!r}: {self.what} must be more than zero, at least 1e-18")
        if value < _LEAST_BARE_RATE and meant[-1] in "0123456789.":
            raise UnitError(f"{text!r} has no unit: did you mean '{meant} G{self.unit}'?")
        return float(value)


_SIZE = _QuantityParser("B", _BYTES, "a number of bytes", "8 MiB")
_TIME = _QuantityParser("s", _FRACTIONS, "a time", "5 s")
parse_bandwidth = _RateParser("B/s", _BYTES, "a bandwidth", "34 GB/s")
"""Bytes per second, from ``"34 GB/s"``; more than zero, and with a unit if less than 10^6."""
parse_frequency = _RateParser("Hz", _RATES, "a frequency", "1 GHz")
"""Hertz, from ``"1 GHz"``; more than zero."""
parse_flops = _RateParser("FLOP/s", _RATES, "an arithmetic rate", "13 TFLOP/s")
"""Floating-point operations per second, from ``"13 TFLOP/s"``; more than zero."""
parse_joules = _QuantityParser("J", _FEMTO, "an energy", "0.3 pJ")
"""Joules, from ``"0.3 pJ"``, ``"5 mJ"`` or a number."""
parse_joules_per_byte = _QuantityParser("J/B", _FEMTO, "an energy per byte", "20 pJ/B")
"""Joules per byte, from ``"20 pJ/B"``."""
parse_watts = _QuantityParser("W", _FRACTIONS | {"k": Decimal(1000)}, "a power", "1.5 W")
"""Watts, from ``"1.5 W"`` or ``"300 mW"``."""


def parse_bytes(text: str | float) -> int:
    """Bytes, from ``"8 MiB"``, ``"11 GB"`` or a whole number."""
    value = _SIZE.exact(text)
    if value != value.to_integral_value():
        raise UnitError(f"{text!r} is not a whole number of bytes")
    return int(value)


def parse_bytes_of(text: str | float, whole: int) -> int:
    """Bytes, or the share ``"50%"`` of ``whole`` bytes, rounded down; a bare number of up to 100 is
    refused, as it may be meant as either."""
    stripped = str(text).strip()
    if not stripped.endswith("%"):
        bytes_ = parse_bytes(text)
        if 0 < bytes_ <= 100 and not stripped.endswith("B"):
            raise UnitError(
                f"{text!r} has no unit: write '{stripped}%' for a share of the whole, or"
                f" '{stripped} B' for so many bytes"
            )
        return bytes_
    most = "of the whole: write one from 0% to 100%, such as '50%', or bytes"
    return int(_share(stripped, 1, most) * whole)


def parse_share(text: str) -> float:
    """A share, from ``"5%"`` or ``"0.05"``; at least 0."""
    return float(_share(text.strip(), WHOLE_LIMIT, "of anything: write one such as '5%'"))


def _share(text: str, most: int, wrong: str) -> Decimal:
    """A share from 0 to ``most``; errors end with ``wrong``."""
    number = text.removesuffix("%")
    try:
        share = _QuantityParser("", {"": 1}, "", "").exact(number) / (1 if number == text else 100)
    except UnitError:
        share = Decimal(-1)
    if not 0 <= share <= most:
        raise UnitError(f"{text!r} is no share {wrong}")
    return share


def parse_seconds(text: str | float) -> float:
    """Seconds, from ``"5 s"``, ``"200 ms"``, ``"2 min"`` or a number."""
    stripped = str(text).strip()
    if stripped.endswith("min"):
        return replace(_TIME, unit="")(stripped.removesuffix("min")) * 60
    return _TIME(text)


def seconds_of(picoseconds: int) -> float:
    """Seconds, the nearest float to so many picoseconds."""
    return picoseconds / PICOSECONDS


Units = Sequence[tuple[float, str]]
"""Size and name of every unit of one kind, the largest first."""


def _prefixed(unit: str, prefixes: Mapping[str, int | Decimal]) -> Units:
    """The units that prefixes make of one."""
    return [(float(size), prefix + unit) for prefix, size in prefixes.items()]


TIMES = _prefixed("s", _FRACTIONS)
ENERGIES = _prefixed("J", _PICO)
SIZES = _prefixed("B", _BINARY | {"": 1})
BANDWIDTHS = _prefixed("B/s", _DECIMAL)


def largest_unit(value: float, units: Units) -> tuple[float, str]:
    """Return the size and the name of the largest unit in which ``value`` is at least one."""
    return next((unit for unit in units if abs(value) >= unit[0]), units[-1])


def _format(value: float, units: Units) -> str:
    """Format a value in the largest unit in which it is at least one, with three significant digits
    and no exponent; few whole ones exactly."""
    size, name = largest_unit(value, units)
    count = value / size
    if size == units[-1][0] == 1 and float(value).is_integer():
        return f"{int(value)} {name}"
    if count == 0 or not math.isfinite(count):
        return f"{count:g} {name}"
    return f"{count:.{max(0, 2 - math.floor(math.log10(abs(count))))}f} {name}"


format_bytes = partial(_format, units=SIZES)
"""Bytes with a binary unit and three significant digits: ``"8.00 MiB"``."""
format_bandwidth = partial(_format, units=BANDWIDTHS)
"""Bandwidth with a decimal unit: ``"34.0 GB/s"``."""
format_seconds = partial(_format, units=TIMES)
"""A time with a fitting unit: ``"12.3 ms"``."""
format_joules = partial(_format, units=ENERGIES)
"""An energy with a fitting unit: ``"12.3 mJ"``."""


def format_rate(per_second: float, unit: str) -> str:
    """A rate with a decimal prefix: ``"1.23 TFLOP/s"``."""
    return _format(per_second, _prefixed(unit, _DECIMAL))


def format_count(count: float) -> str:
    """A count with a decimal prefix: ``"4.09 G"``."""
    return format_rate(count, "").rstrip()


def rate_unit(precisions: Iterable[str]) -> str:
    """The unit of arithmetic rates at some precisions: floating-point operations a second if all
    are known to be of floating-point numbers, else operations."""
    kinds = [*precisions]
    integers = any(kind.startswith(("int", "uint")) for kind in kinds)
    return "OP/s" if integers or not kinds else "FLOP/s"


_PARSERS: dict[str, Callable[[str], float]] = {
    "FLOP/s": parse_flops,
    "J/B": parse_joules_per_byte,
    "B/s": parse_bandwidth,
    "Hz": parse_frequency,
    "W": parse_watts,
    "J": parse_joules,
    "B": parse_bytes,
    "min": parse_seconds,
    "s": parse_seconds,
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
            return format_bytes(self.value)
        if self.unit:
            return _format(self.value, _prefixed(self.unit, {**_DECIMAL, **_PICO}))
        return self.exact


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
