"""Which regions run in how many bands: the least extra work for every size of the head.

Minimise the multiply-accumulates of bands over those of the network, subject to

    load of every operator that stays, and peak of every region <= target,

a shortest path over positions between operators: an edge keeps an operator, or runs a region in
bands. Targets go down from the load of the network as it is; each is just below what the path for
the one before takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.integrations.tflite.bands.regions import Bands, Chain, Region, counts
from loadmaster.integrations.tflite.lifetimes import UNIT, arena_bytes, element_bytes, needs_room

_BAND_COST = 1e-5
"""What a band more costs beside its work, as a share of that of the network."""
_DEPTHWISE, _COPIED = 4, 3
"""Time of a multiply-accumulate of a depthwise convolution, and of an element that SLICE copies, in
those of any other convolution: TFLM's reference kernels, roughly."""


@dataclass(frozen=True)
class Choice:
    """Regions in bands, in their order, bytes of the head that they need at least,
    multiply-accumulates over those of the network, and of which variant of it; ``time`` is over
    that of the network, too, and estimated."""

    bands: tuple[Bands, ...]
    load: int
    work: float
    variant: int = 0
    time: float = 1.0


class BandSearch:
    """Finds the choices of a network, for targets from large to small."""

    def __init__(self, chain: Chain, alignment: int = UNIT) -> None:
        self.chain, self.alignment = chain, alignment
        tensors = chain.subgraph.tensors
        self.size = [arena_bytes(t) if needs_room(t) else 0 for t in tensors]
        count = len(chain.subgraph.operators)
        self.born = dict.fromkeys(chain.subgraph.inputs, -1)
        self.born |= {
            t: number for number, op in enumerate(chain.subgraph.operators) for t in op.outputs
        }
        change = [0] * (count + 2)
        for tensor, first in self.born.items():
            change[max(first, 0)] += self.size[tensor]
            change[min(chain.last_use.get(tensor, max(first, 0)), count - 1) + 1] -= self.size[
                tensor
            ]
        self.load = [sum(change[: number + 1]) for number in range(count)]
        self.edges: dict[int, list[tuple[Bands, int, float]]] = {}
        total = max(1, chain.total_work)
        for region in chain.regions():
            for bands in self._divided(region):
                work = self._extra(bands, chain.work) / total + _BAND_COST * bands.count
                peak = self._peak(bands)
                self.edges.setdefault(region.first, []).append((bands, peak, work))

    def choices(self) -> Iterator[Choice]:
        """Choices of ever smaller loads and ever more work, from none in bands on."""
        target = max(self.load, default=0)
        while True:
            found = self._path(target)
            if found is None:
                return
            yield found
            target = found.load - 1

    def _divided(self, region: Region) -> Iterator[Bands]:
        chain = self.chain
        row = self.size_of_row(region.result)
        total = chain.rows(region.result)
        for count in counts(total):
            rows = -(-total // count)
            if row * rows % self.alignment or row * (total - rows) % self.alignment:
                continue
            yield from chain.bands(region, count)

    def size_of_row(self, tensor: int) -> int:
        """Bytes of a row of a feature map."""
        entry = self.chain.subgraph.tensors[tensor]
        return element_bytes(entry) * self._elements(tensor)

    def _extra(self, bands: Bands, of_row: Sequence[int]) -> int:
        """What rows that are made again take, given what a row of each operator takes."""
        extra = 0
        for number in range(bands.region.first, bands.region.last):
            (made,) = self.chain.subgraph.operators[number].outputs
            rows = bands.count * bands.heights[made] - self.chain.rows(made)
            extra += of_row[number] * rows
        return extra

    def _time(self, chosen: Sequence[Bands]) -> float:
        """Time over that of the network, estimated."""
        chain, operators = self.chain, self.chain.subgraph.operators
        each = [
            work * (_DEPTHWISE if op.kind == "DEPTHWISE_CONV_2D" else 1)
            for work, op in zip(chain.work, operators, strict=True)
        ]
        whole = sum(
            row * chain.rows(op.outputs[0]) for row, op in zip(each, operators, strict=True) if row
        )
        more = 0
        for bands in chosen:
            copied = bands.height * self._elements(bands.region.source)
            copied += sum(cut.rows * self._elements(cut.tensor) for cut in bands.cuts)
            more += self._extra(bands, each) + _COPIED * bands.count * copied
        return 1 + more / max(1, whole)

    def _elements(self, tensor: int) -> int:
        """Elements of a row of a feature map."""
        entry = self.chain.subgraph.tensors[tensor]
        return entry.count // entry.shape[1]

    def _peak(self, bands: Bands) -> int:
        """Bytes that lie in the arena at once at some time while a region runs in bands."""
        region, chain = bands.region, self.chain
        ends = chain.last_use.get(region.source, 0)
        own = {region.source} | {
            t for op in chain.subgraph.operators[region.first : region.last] for t in op.outputs
        }
        across = sum(
            self.size[t]
            for t, first in self.born.items()
            if t not in own and first < region.first and chain.last_use.get(t, -1) >= region.first
        )
        source = self.size_of_row(region.source)
        result = self.size_of_row(region.result)
        inner = self._inner(bands)
        slice_ = _rounded(bands.height * source)
        most = 0
        for band in range(bands.count):
            last = band + 1 == bands.count
            before = self.size[region.source] - bands.starts[band] * source
            left = 0 if last else self.size[region.source] - bands.starts[band + 1] * source
            if ends >= region.last:
                before = left = self.size[region.source]
            before_band = band * bands.rows * result
            most = max(most, across + before + before_band + slice_)
            # A body is at one address for all bands, so it keeps clear of its own band as well: the
            # next run finds it there. After the last there is none, which matters where a residual
            # is kept; elsewhere addresses are easier to find if it keeps clear too.
            made = (bands.tops[band] + bands.rows) * result
            own_band = before_band if last and len(region.kept) > 1 else made
            most = max(most, across + left + _rounded(own_band) + inner, across + left + made)
        return max(most, across + self.size[region.result])

    def _inner(self, bands: Bands) -> int:
        """The most bytes of a band's own tensors at once."""
        region = bands.region
        operators = self.chain.subgraph.operators[region.first : region.last]
        row = {t: self.size_of_row(t) for t in bands.heights}
        last = {t: n for n, op in enumerate(operators, region.first) for t in op.inputs}
        last[region.result] = region.last
        alive = {region.source: _rounded(bands.height * row[region.source])}
        loads = [0]
        for number, op in enumerate(operators, region.first):
            loads += self._cut(bands, number, alive, row)
            (made,) = op.outputs
            alive[made] = _rounded(bands.heights[made] * row[made])
            loads.append(sum(alive.values()))
            alive = {t: each for t, each in alive.items() if last.get(t, -1) > number}
        return max([*loads, *self._cut(bands, region.last, alive, row)])

    def _cut(
        self, bands: Bands, number: int, alive: dict[int, int], row: Mapping[int, int]
    ) -> Iterator[int]:
        """Bytes while tensors are cut before an operator, one after another."""
        for cut in bands.cuts:
            if cut.before == number:
                kept = _rounded(cut.rows * row[cut.tensor])
                yield sum(alive.values()) + kept
                alive[cut.tensor] = kept

    def _path(self, target: int) -> Choice | None:
        count = len(self.load)
        best: list[tuple[float, int, Bands | None, int] | None] = [None] * (count + 1)
        best[0] = (1.0, 0, None, 0)
        for at in range(count):
            here = best[at]
            if here is None:
                continue
            if self.load[at] <= target:
                _offer(best, at + 1, (here[0], max(here[1], self.load[at]), None, at))
            for bands, peak, work in self.edges.get(at, ()):
                if peak <= target:
                    _offer(best, bands.region.last, (here[0] + work, max(here[1], peak), bands, at))
        end = best[count]
        if end is None:
            return None
        chosen: list[Bands] = []
        at = count
        while at > 0:
            entry = best[at]
            assert entry is not None
            if entry[2] is not None:
                chosen.append(entry[2])
            at = entry[3]
        extra = end[0] - _BAND_COST * sum(each.count for each in chosen)
        chosen.reverse()
        return Choice(tuple(chosen), end[1], extra, time=self._time(chosen))


def _offer(
    best: list[tuple[float, int, Bands | None, int] | None],
    at: int,
    entry: tuple[float, int, Bands | None, int],
) -> None:
    known = best[at]
    if known is None or entry[:2] < known[:2]:
        best[at] = entry


def _rounded(size: int) -> int:
    return -(-size // UNIT) * UNIT
