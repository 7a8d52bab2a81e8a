"""Target files: the bundled ones are what they say, broken ones are refused with their errors at
once."""

import pytest
from tests.support.tables import cases

from loadmaster.core.errors import TargetError
from loadmaster.targets.hardware import Style
from loadmaster.targets.load import bundled, source_text, target

MINIMAL = """
name = "tiny"
[dram]
role = "main"
capacity = "1 MiB"
bandwidth = "1 GB/s"
[[cores]]
name = "core"
style = "output-stationary"
rows = 2
columns = 2
clock = "1 MHz"
buffer = "4 KiB"
"""


def test_edge_npu_is_as_documented():
    npu = target("edge-npu")
    assert [core.name for core in npu.cores] == ["ws0", "ws1", "ws2", "lb"]
    assert [core.style for core in npu.cores] == [Style.WEIGHT_STATIONARY] * 3 + [
        Style.ROW_STATIONARY
    ]
    assert all(
        (core.rows, core.columns, core.clock, core.buffer) == (32, 64, 1e9, 128 * 1024)
        for core in npu.cores
    )
    assert npu.cores[0].macs_per_cycle == {8: 1.0, 16: 0.5, 32: 0.25}
    assert (npu.main.capacity, npu.main.read_bandwidth) == (4 * 2**30, 34e9)
    assert (npu.fast.capacity, npu.fast.read_bandwidth) == (8 * 2**20, 128e9)


@pytest.mark.parametrize(
    ("name", "cores", "low_bandwidth", "bandwidth"),
    [
        ("m3e-s1", 4, 0, 16e9),
        ("m3e-s2", 4, 1, 16e9),
        ("m3e-s3", 8, 0, 256e9),
        ("m3e-s4", 8, 1, 256e9),
        ("m3e-s5", 8, 2, 256e9),
        ("m3e-s6", 16, 2, 256e9),
    ],
)
def test_m3e_settings_have_the_papers_cores(name, cores, low_bandwidth, bandwidth):
    setting = target(name)
    assert len(setting.cores) == cores
    assert sum(core.style is Style.ROW_STATIONARY for core in setting.cores) == low_bandwidth
    assert all(core.buffer == (146 if core.rows == 32 else 512) * 1024 for core in setting.cores)
    assert setting.main.read_bandwidth == bandwidth
    assert setting.fast is None


def test_a_scratchpad_can_be_given_to_an_m3e_setting():
    fast = target("m3e-s2", ["scratchpad.capacity=8MiB"]).fast
    assert (fast.capacity, fast.read_bandwidth) == (8 * 2**20, 256e9)


def test_energies_are_none_unless_they_are_stated():
    plain = target("edge-npu")
    assert (plain.main.energy, plain.fast.energy, plain.static_power) == (None, None, 0.0)
    stated = target(
        "edge-npu", ["dram.energy=40 pJ/B", "scratchpad.energy=2e-12", "static_power=1.5 W"]
    )
    assert (stated.main.energy, stated.fast.energy, stated.static_power) == (40e-12, 2e-12, 1.5)
    with pytest.raises(TargetError, match=r"dram\.energy: .* is not an energy per byte"):
        target("edge-npu", ["dram.energy=40 W"])


def test_a_core_states_the_energies_that_are_known():
    machine = target(
        "edge-npu", 'cores.ws.energy={ mac_int8 = "0.5 pJ", local = "2 pJ/B", buffer = "6 pJ/B" }'
    )
    assert machine.cores[0].energy == {
        "buffer": pytest.approx(6e-12),
        "local": pytest.approx(2e-12),
        "mac_int8": pytest.approx(5e-13),
    }
    assert machine.cores[3].energy == {}
    with pytest.raises(
        TargetError, match=r"cores\.0\.energy\.registers: there is no such field: .*network"
    ):
        target("edge-npu", "cores.ws.energy={ registers = 2e-12 }")


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_target_can_be_printed_and_read_back(name, tmp_path):
    file = tmp_path / "mine.toml"
    # Editors of some systems begin a file with a mark of the order of bytes.
    file.write_text(source_text(name), encoding="utf-8-sig")
    assert target(file) == target(name)
    assert target(name).description


@pytest.mark.parametrize(
    "override",
    ["dram.bandwidth=8 GB/s", "dram.bandwidth='8 GB/s'", "dram.bandwidth=8000000000"],
)
def test_overrides_take_units_with_and_without_quotes(override):
    assert target("edge-npu", [override]).main.read_bandwidth == 8e9


def test_tables_that_a_file_lacks_can_be_set():
    assert target("edge-npu", ["cores.ws.efficiency.Conv=0.5"]).cores[0].efficiency == {"Conv": 0.5}
    rates = [f"copy.{name}=8GB/s" for name in ("to_fast", "to_main")]
    assert target("m3e-s1", rates).copy.blocking == (8e9, 8e9)


def test_a_core_can_be_overridden_by_name_or_position():
    assert target("edge-npu", ["cores.lb.rows=8"]).cores[-1].rows == 8
    assert target("edge-npu", ["cores.0.rows=8"]).cores[0].rows == 8
    assert len(target("edge-npu", ["cores.ws.count=5"]).cores) == 6


@pytest.mark.parametrize(
    ("override", "message"),
    cases("""
        dram.bandwith=3 | dram.bandwith
        nvram.capacity=1 | no table 'nvram': did you mean dram
        cores.9.rows=1 | cores has no '9': choose one of ws, lb
        dram=3 | dram is a table: name one of its fields, such as dram.role
        cores=[] | cores is a table: name one of its fields, such as cores.0.count
        speed=3 | speed: there is no such field: .*, copy, .*; any other table is a memory
        dram.capacity | PATH=VALUE
        cores.0.rows=0 | cores.0.rows
        cores.0.sram=1 MiB | a core's own memory is its buffer, .* no tensor stays there
        dram.role=local | a core's own memory is its buffer
        cores.0.style=magic | cores.0.style
        cores.0.flexible=1 | cores.0.flexible
        cores.0.local_buffer=-1 | cores.0.local_buffer
        cores.0.noc_bandwidth=0 | cores.0.noc_bandwidth
        # Seconds for a byte or a product stay finite.
        cores.0.clock=1e-310 Hz | cores.0.clock: .* at least 1e-18
        dram.bandwidth=1e-30 B/s | dram.bandwidth: .* at least 1e-18
        cores.0.macs_per_cycle.int8=5e-324 | cores.0.macs_per_cycle.int8
        cores.0.efficiency={Conv=5e-324} | cores.0.efficiency.Conv
        cores.0.noc_latency=-1 | cores.0.noc_latency
        cores.0.noc_latency=nan | cores.0.noc_latency
        dram.capacity=0 | dram.capacity
        dram.capacity=9 EiB | dram.capacity
        dram.bandwidth=nan | dram.bandwidth
        cores.0.macs_per_cycle.int8=inf | cores.0.macs_per_cycle.int8
    """),
)
def test_a_bad_override_says_where_and_what_there_is(override, message):
    with pytest.raises(TargetError, match=message):
        target("edge-npu", [override])


def test_all_errors_of_a_file_come_at_once_with_their_paths(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(
        MINIMAL.replace('"1 MiB"', '"1 MHz"')
        .replace("rows = 2", "rows = -2")
        .replace('"4 KiB"', '"0"')
    )
    with pytest.raises(TargetError) as caught:
        target(file)
    for path in ("dram.capacity", "cores.0.rows"):
        assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_many_errors_of_a_file_the_first_are_named_and_the_others_counted(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(MINIMAL.replace("[[cores]]\n", ""))
    with pytest.raises(TargetError, match=r"cores: field required; .*; and 4 more$") as caught:
        target(file)
    assert str(caught.value).count(str(file)) == 3


def test_all_errors_of_overrides_come_at_once():
    with pytest.raises(TargetError) as caught:
        target("edge-npu", ["dram.bandwidth=-1", "cores.ws.rows=0", "cores.zz.rows=1"])
    for part in ("dram.bandwidth", "cores.0.rows", "'zz'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    cases(r"""
        [dram] | [core] | 'core' is used twice
        [dram] | memories = 5\n[dram] | memories: there is no such field
        role = "main" | role = "fast" | exactly one memory must have role
        bandwidth = "1 GB/s" | | give either bandwidth, or read_bandwidth and write_bandwidth
        bandwidth = "1 GB/s" | bandwidth = "1 GB/s"\nin_place = false | needs a fast memory and a
        clock = "1 MHz" | | takes clock
        buffer = "4 KiB" | | needs a private buffer
        [[cores]] | [cores | not valid TOML
    """),
)
def test_a_contradictory_file_is_refused(old, new, message, tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(MINIMAL.replace(old, new))
    with pytest.raises(TargetError, match=message):
        target(file)


@pytest.mark.parametrize("field", ["flexible=true", "noc_bandwidth=1 GB/s", "noc_latency=1 us"])
def test_a_core_without_an_array_has_no_network_to_it(field):
    with pytest.raises(TargetError, match="a roofline core has no array"):
        target("gpu-pcie", [f"cores.gpu.{field}"])


@pytest.mark.parametrize("source", ["no-such-target", "missing.toml", "."])
def test_what_is_no_target_is_refused_in_one_line(source, tmp_path):
    with pytest.raises(TargetError) as caught:
        target(source)
    assert "\n" not in str(caught.value)


def test_a_directory_and_binary_rubbish_are_refused(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("folder.toml", "binary.toml"):
        with pytest.raises(TargetError, match=name):
            target(tmp_path / name)
