"""Quantities with units, in and out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import cases, column

from loadmaster.core import units
from loadmaster.core.errors import UnitError


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    cases("""
        bytes | 8 MiB | 8388608
        bytes | 8MiB | 8388608
        bytes | 11 GB | 11e9
        bytes | 1.5 TB | 1.5e12
        bytes | 0.5KiB | 512
        bytes | 1e3 | 1000
        bandwidth | 34 GB/s | 34e9
        bandwidth | 1 MiB/s | 1048576
        frequency | 1 GHz | 1e9
        flops | 2.3 TFLOP/s | 2.3e12
        seconds | 5 | 5
        seconds | 200 ms | 0.2
        seconds | 2 min | 120
        joules_per_byte | 20 pJ/B | 20e-12
        joules_per_byte | 0.5 nJ/B | 0.5e-9
        watts | 300 mW | 0.3
        watts | 1.2 kW | 1200
    """),
)
def test_each_kind_of_quantity_reads_its_own_unit(kind, text, expected):
    assert getattr(units, f"parse_{kind}")(text) == float(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        True,
        *column("""
            MiB
            8 GB/s
            8 MHz
            -1 B
            NaN
            inf
            1e99 B
            1e999999 GB
            1.5 B
            0x10
            8 8 B
            ٣ B x
        """),
    ],
)
def test_what_is_not_a_number_of_bytes_is_refused_by_name(text):
    with pytest.raises(UnitError, match="bytes"):
        units.parse_bytes(text)


@pytest.mark.parametrize("parse", [units.parse_bandwidth, units.parse_frequency, units.parse_flops])
def test_rates_must_be_positive(parse):
    with pytest.raises(UnitError, match="more than zero"):
        parse(0)


@given(st.integers(0, 2**62))
def test_whole_bytes_survive_parsing(count):
    assert units.parse_bytes(f"{count} B") == units.parse_bytes(count) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(8 * 2**20), "8.00 MiB"),
        (units.format_bytes(17), "17 B"),
        (units.format_bandwidth(34e9), "34.0 GB/s"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(0), "0 ns"),
        (units.format_seconds(2e-9), "2.00 ns"),
        (units.format_count(4_089_000_000), "4.09 G"),
        (units.format_rate(1.234e12, "FLOP/s"), "1.23 TFLOP/s"),
        (str(units.parse_quantity("0.3 pJ")), "0.300 pJ"),
        (str(units.parse_quantity("2e9 B/s")), "2.00 GB/s"),
        (str(units.parse_quantity("64")), "64"),
    ],
)
def test_quantities_print_with_three_digits(text, expected):
    assert text == expected


@pytest.mark.parametrize("text", ["-5%", "101%", "x%", "%", "5 B%", "1e9999999999999999999%"])
def test_what_is_no_share_is_refused_as_a_share(text):
    with pytest.raises(UnitError, match="no share of the whole: write one from 0% to 100%"):
        units.parse_bytes_of(text, 100)


@pytest.mark.parametrize("text", ["-5%", "1e400%", "1e9999999999999999999", "x", "5 B"])
def test_a_share_is_a_finite_number(text):
    with pytest.raises(UnitError, match=f"'{text}' is no share of anything: write one such as"):
        units.parse_share(text)


def test_shares_are_of_the_whole_and_amounts_are_not_negative():
    assert [units.parse_bytes_of(text, 1000) for text in ("0%", "12.5 %", "100%", "7 B")] == [
        0,
        125,
        1000,
        7,
    ]
    with pytest.raises(UnitError, match="'-5 B' is less than nothing"):
        units.parse_bytes("-5 B")


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (units.parse_bandwidth, "2", "'2 GB/s'"),
        (units.parse_bandwidth, 8, "'8 GB/s'"),
        (units.parse_frequency, "1.5", "'1.5 GHz'"),
        (units.parse_flops, "13", "'13 GFLOP/s'"),
        (lambda text: units.parse_bytes_of(text, 1000), "50", "'50%'"),
    ],
)
def test_a_number_that_only_another_unit_makes_sense_of_is_refused_with_that(parse, text, meant):
    with pytest.raises(UnitError, match=re.escape(meant)):
        parse(text)


def test_numbers_with_units_and_large_ones_without_are_taken_as_they_are():
    assert units.parse_bandwidth("2 B/s") == 2.0
    assert units.parse_bandwidth(34e9) == 34e9
    assert units.parse_bytes_of("50 B", 1000) == 50
    assert units.parse_bytes_of(4096, 1000) == 4096
