"""The schema of target files, which reports all errors of a file at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from loadmaster.core.arguments import instead
from loadmaster.core.errors import TargetError, UnitError, first_errors
from loadmaster.core.provenance import Label, Provenance
from loadmaster.core.units import (
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_frequency,
    parse_joules,
    parse_joules_per_byte,
    parse_seconds,
    parse_watts,
)
from loadmaster.targets.hardware import ESTIMATED, CopyEngine, Core, Memory, Style, Target

BITS = {"int8": 8, "fp16": 16, "fp32": 32}
"""Bits of the precisions that cores have rates for."""


def _unit(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Return a validator that parses a quantity with its unit."""

    def read(value: Any) -> Any:
        """Parse a quantity; errors become pydantic's."""
        try:
            return parse(value)
        except UnitError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


_Bytes = Annotated[int, _unit(parse_bytes)]
_Bandwidth = Annotated[float, _unit(parse_bandwidth)]
_Frequency = Annotated[float, _unit(parse_frequency)]
_Seconds = Annotated[float, _unit(parse_seconds)]
_Flops = Annotated[float, _unit(parse_flops)]
_Energy = Annotated[float, _unit(parse_joules_per_byte)]
_Joules = Annotated[float, _unit(parse_joules)]
_Power = Annotated[float, _unit(parse_watts)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=40)]
_Size = Annotated[int, Field(ge=1, le=2**20, strict=True)]
_Flag = Annotated[bool, Field(strict=True)]
_Rate = Annotated[float, Field(ge=1e-18, le=2**20, allow_inf_nan=False)]


class _TargetTable(BaseModel):
    """A table without further keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def given(self, kind: Any, **other: Any) -> dict[str, Any]:
        """Return the fields of the dataclass ``kind`` that the table has, and ``other`` ones."""
        known = vars(self) | other
        return {field.name: known[field.name] for field in fields(kind)}


class _MemoryTable(_TargetTable):
    """A memory's table in a target file."""

    role: Literal["main", "fast"]
    capacity: _Bytes
    bandwidth: _Bandwidth | None = None
    read_bandwidth: _Bandwidth | None = None
    write_bandwidth: _Bandwidth | None = None
    in_place: bool = True
    alignment: Annotated[_Bytes, Field(ge=1)] = 64
    energy: _Energy | None = None
    burst: Annotated[_Bytes, Field(ge=1)] = 64
    page: Annotated[_Bytes, Field(lt=2**40)] = 0

    @model_validator(mode="after")
    def _check_bandwidths(self) -> _MemoryTable:
        """Check that either one bandwidth is given or one for each direction."""
        missing = [self.read_bandwidth, self.write_bandwidth].count(None)
        if missing != (0 if self.bandwidth is None else 2):
            raise ValueError("give either bandwidth, or read_bandwidth and write_bandwidth")
        return self

    def memory(self, name: str) -> Memory:
        """Return the memory under its name."""
        read = self.read_bandwidth or self.bandwidth
        write = self.write_bandwidth or self.bandwidth
        return Memory(**self.given(Memory, name=name, read_bandwidth=read, write_bandwidth=write))


class _EnergyTable(_TargetTable):
    """The table of a core's energies, in joules."""

    mac_int8: _Joules | None = None
    mac_fp16: _Joules | None = None
    mac_fp32: _Joules | None = None
    scalar_int8: _Joules | None = None
    scalar_fp16: _Joules | None = None
    scalar_fp32: _Joules | None = None
    local: _Energy | None = None
    network: _Energy | None = None
    buffer: _Energy | None = None


class _CoreTable(_TargetTable):
    """A [[cores]] table of a target file: ``count`` equal cores."""

    name: _Name
    style: Style
    count: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    rows: _Size = 1
    columns: _Size = 1
    clock: _Frequency | None = None
    peak: _Flops | None = None
    lanes: _Size | None = None
    buffer: _Bytes = 0
    flexible: _Flag = False
    local_buffer: _Bytes = 512
    noc_bandwidth: _Bandwidth | None = None
    noc_latency: _Seconds = 0.0
    weight_loading: _Bandwidth | None = None
    winograd: _Flag = False
    job_overhead: _Seconds = 0.0
    efficiency: dict[
        Annotated[str, Field(min_length=1, max_length=80)], Annotated[float, Field(ge=1e-18, le=1)]
    ] = {}
    accumulator: Annotated[_Bytes, Field(ge=1, le=64)] = 4
    energy: _EnergyTable = _EnergyTable()
    macs_per_cycle: dict[Literal["int8", "fp16", "fp32"], _Rate] = {
        "int8": 1.0,
        "fp16": 1.0,
        "fp32": 1.0,
    }

    @model_validator(mode="after")
    def _style_has_its_fields(self) -> _CoreTable:
        """Check that the fields of the core's style are given and no others."""
        if self.style is Style.ROOFLINE:
            if not self.peak or self.clock:
                raise ValueError("a roofline core takes peak (FLOP/s) and no clock")
            if self.flexible or self.noc_bandwidth or self.noc_latency or self.weight_loading:
                raise ValueError(
                    "a roofline core has no array: leave out flexible, noc_bandwidth, noc_latency"
                    " and weight_loading"
                )
        elif not self.clock or self.peak:
            raise ValueError(f"a {self.style} core takes clock, rows and columns, and no peak")
        elif self.buffer == 0:
            raise ValueError(f"a {self.style} core needs a private buffer: give buffer")
        if missing := BITS.keys() - self.macs_per_cycle:
            raise ValueError(f"macs_per_cycle lacks {', '.join(sorted(missing))}")
        return self

    def cores(self) -> list[Core]:
        """Return the cores of the table, numbered if there are several."""
        # A roofline core does peak / 2 multiply-accumulates a second: one a "cycle" of a clock that
        # fast.
        clock = self.clock or (self.peak or 0.0) / 2
        names = [self.name] if self.count == 1 else [f"{self.name}{i}" for i in range(self.count)]
        core = Core(
            **self.given(
                Core,
                clock=clock,
                macs_per_cycle=dict(
                    sorted((BITS[n], rate) for n, rate in self.macs_per_cycle.items())
                ),
                lanes=self.lanes or self.columns,
                efficiency=dict(sorted(self.efficiency.items())),
                energy=dict(sorted(self.energy.model_dump(exclude_none=True).items())),
            )
        )
        return [replace(core, name=name) for name in names]


class _CopyTable(_TargetTable):
    """The [copy] table of a target file, in bytes per second."""

    to_fast: _Bandwidth
    to_main: _Bandwidth
    asynchronous_to_fast: _Bandwidth | None = None
    asynchronous_to_main: _Bandwidth | None = None
    shared: _Flag = False

    def engine(self) -> CopyEngine:
        """Return the copy engine; asynchronous bandwidths default to the blocking ones."""
        return CopyEngine(
            (self.to_main, self.to_fast),
            (
                self.asynchronous_to_main or self.to_main,
                self.asynchronous_to_fast or self.to_fast,
            ),
            self.shared,
        )


class _CalibrationTable(_TargetTable):
    """The calibration that `loadmaster calibrate` writes; errors are the mean factor between model
    and measurement, minus 1."""

    base: str
    measured: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rows: Annotated[int, Field(ge=1, strict=True)]
    error_before: Annotated[float, Field(ge=0)]
    error_after: Annotated[float, Field(ge=0)]
    error_cross_validated: Annotated[float, Field(ge=0)] | None = None
    fitted: list[str] = []
    bounded: list[str] = []
    kept: list[str] = []

    def provenance(self) -> Provenance:
        """Return the source of calibrated figures."""
        return Provenance(
            Label.CALIBRATED, f"{self.measured}, {self.rows} rows, sha256 {self.sha256[:12]}"
        )


_MEMORIES = "[memories]"
"""Key of the tables that are memories, which no field of a file has."""


class _TargetFile(_TargetTable):
    """A target file."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    description: Annotated[str, Field(max_length=400)] = ""
    cores: Annotated[list[_CoreTable], Field(min_length=1, max_length=64)]
    copy_engine: Annotated[_CopyTable | None, Field(alias="copy")] = None
    static_power: _Power = 0.0
    calibration: _CalibrationTable | None = None
    memories: Annotated[dict[_Name, _MemoryTable], Field(alias=_MEMORIES)]


_RESERVED = ("name", "description", "cores", "copy", "static_power", "calibration")
"""Keys of a file that are no memories, in the order of its fields."""


def build_target(document: dict[str, Any], label: str) -> Target:
    """Check a parsed target file and build the target; ``label`` names the file in errors."""
    # A value that is no table is no memory: left among the known fields, it is refused as one that
    # there is not.
    known = dict(document)
    memories = {
        key: known.pop(key)
        for key, value in document.items()
        if key not in _RESERVED and isinstance(value, dict)
    }
    try:
        file = _TargetFile.model_validate({**known, _MEMORIES: memories})
    except ValidationError as error:
        raise TargetError(first_errors(_lines(error, label))) from None
    return _assemble(file, label)


_OWN_MEMORY = (
    "; a core's own memory is its buffer, which holds the tiles of one job: no tensor stays there"
)


def _lines(error: ValidationError, label: str) -> list[str]:
    """One clause per error, with its dotted path in the file."""
    clauses = []
    for detail in error.errors():
        keys = [str(key) for key in detail["loc"] if key != "[key]"]
        path = ".".join(keys[1:] if keys[:1] == [_MEMORIES] else keys)
        unknown = detail["type"] == "extra_forbidden"
        message = (
            f"there is no such field: {instead(keys[-1], *_fields_beside(keys))}"
            if unknown
            else detail["msg"]
        )
        message = message.removeprefix("Value error, ")
        if keys[-1:] == ["role"] or (keys[0] == "cores" and "choose one of" in message):
            message += _OWN_MEMORY
        clauses.append(f"{label}: {path or 'file'}: {message[:1].lower() + message[1:]}")
    return clauses


def _fields_beside(keys: list[str]) -> tuple[Sequence[str], str]:
    """Field names of the table at a path of keys, and what else may be there."""
    tables: dict[str, type[_TargetTable]] = {
        _MEMORIES: _MemoryTable,
        "cores": _CoreTable,
        "copy": _CopyTable,
        "calibration": _CalibrationTable,
        "energy": _EnergyTable,
    }
    table = next((tables[key] for key in keys[-2::-1] if key in tables), None)
    if table is None:
        return _RESERVED, "; any other table is a memory"
    return list(table.model_fields), ""


def _assemble(file: _TargetFile, label: str) -> Target:
    """Return the target of a checked file; raise TargetError with everything that does not fit
    together."""
    cores = tuple(core for table in file.cores for core in table.cores())
    held = [(table.role, table.memory(name)) for name, table in file.memories.items()]
    main = [memory for role, memory in held if role == "main"]
    # A fast memory of no bytes is a machine without one; `--set scratchpad.capacity=8MiB` gives it
    # one.
    fast = [memory for role, memory in held if role == "fast" and memory.capacity]
    names = [core.name for core in cores] + list(file.memories)
    problems = [
        f"the name {name!r} is used twice"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if len(main) != 1:
        problems.append(f'exactly one memory must have role = "main", not {len(main)}')
    if len(fast) > 1:
        problems.append(f'at most one memory may have role = "fast", not {len(fast)}{_OWN_MEMORY}')
    if fast and not fast[0].in_place:
        problems.append(
            f"{fast[0].name}.in_place: cores must be able to use the fast memory in place"
        )
    if fast and fast[0].page:
        problems.append(
            f"{fast[0].name}.page: pages are those of the main memory: give it page instead"
        )
    if main and fast and main[0].page % fast[0].alignment:
        problems.append(
            f"{main[0].name}.page: must be a multiple of {fast[0].name}.alignment,"
            f" {fast[0].alignment} bytes"
        )
    problems += [f"{m.name}.capacity: must be more than zero" for m in main if m.capacity == 0]
    if main and not main[0].in_place and (not fast or file.copy_engine is None):
        problems.append(f"{main[0].name}.in_place = false needs a fast memory and a [copy] table")
    if problems:
        raise TargetError(first_errors([f"{label}: {problem}" for problem in problems]))
    copy = file.copy_engine.engine() if file.copy_engine else None
    provenance = ESTIMATED if file.calibration is None else file.calibration.provenance()
    return Target(
        file.name,
        file.description,
        cores,
        (*main, *fast),
        copy,
        file.static_power,
        provenance,
    )
