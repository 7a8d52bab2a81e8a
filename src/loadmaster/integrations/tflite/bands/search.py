"""Chooses the regions that run in bands, and their numbers of bands, with the least extra work for
every size of the head.

Minimises the ratio of multiply-accumulates to those of the network, subject to

    load of every operator outside of regions, and peak of every region <= target.

This is a shortest path over positions between operators: an edge is an operator, or a region in
bands. The first target is the load of the network; each following one is just below the load of the
path before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from loadmaster.integrations.tflite.bands.regions import Bands, Region, RowChain, counts
from loadmaster.integrations.tflite.bands.rows import work_of
from loadmaster.integrations.tflite.lifetimes import UNIT, arena_bytes, rounded, row_bytes

_BAND_COST = 1e-5
"""Cost of another band beside its work, as a share of the network's work."""
_TAIL_OF_BAND = 248
"""Bytes of the tail that a band takes with pointers of 64 bits, measured; 136 with 32 bits. An
operator takes about half (PAD 128)."""
_DEPTHWISE, _COPIED = 4, 3
"""Time of a multiply-accumulate of a depthwise convolution, and of an element copied by SLICE, in
multiply-accumulates of other convolutions; rough values for TFLM's reference kernels."""


@dataclass(frozen=True)
class BandChoice:
    """A choice of regions in bands.

    Attributes
    ----------
    bands
        Regions in bands, in the order of the network.
    load
        Lower bound in bytes of the head.
    work, time
        Ratios of multiply-accumulates, and of the estimated time, to those of the network.
    variant
        Name of the network's variant in `Front`.
    left_out
        Number of operators that it leaves out.
    """

    bands: tuple[Bands, ...]
    load: int
    work: float
    variant: str = ""
    time: float = 1.0
    left_out: int = 0

    @property
    def tail(self) -> int:
        """Estimate in bytes of what the choice adds to the tail."""
        return _TAIL_OF_BAND * (2 * sum(each.count for each in self.bands) - self.left_out) // 2

    @property
    def size(self) -> int:
        """Estimate in bytes of the head and of what the choice adds to the tail."""
        return self.load + self.tail


class _Path(NamedTuple):
    """A path to position ``end`` between operators: its extra work, its peak in bytes, and its
    regions in bands. An edge is an operator, or a region in bands."""

    work: float
    peak: int
    bands: tuple[Bands, ...]
    end: int


class BandSearch:
    """Finds the choices of regions in bands for a network."""

    def __init__(self, chain: RowChain, alignment: int = UNIT) -> None:
        self.chain, self.alignment = chain, alignment
        tensors, operators = chain.subgraph.tensors, chain.subgraph.operators
        self.size = [arena_bytes(tensor) for tensor in tensors]
        self.work = [work_of(chain.subgraph, op) for op in operators]
        self.born = {t: 0 for t in chain.subgraph.inputs if t in chain.last_use}
        self.born |= {t: number for number, op in enumerate(operators) for t in op.outputs}
        change = [0] * (len(operators) + 1)
        for tensor, first in self.born.items():
            last = min(chain.last_use.get(tensor, first), len(operators) - 1)
            change[first] += self.size[tensor]
            change[last + 1] -= self.size[tensor]
        self.load = list(accumulate(change[:-1]))
        # Edges of single operators, then those of regions in bands.
        self.edges = [[_Path(0.0, load, (), at + 1)] for at, load in enumerate(self.load)]
        total = max(1, sum(self.work))
        for region in chain.regions():
            for bands in self._bands_of(region):
                work = self._repeated_work(bands, self.work) / total + _BAND_COST * bands.count
                edge = _Path(work, self._peak(bands), (bands,), region.last)
                self.edges[region.first].append(edge)

    def choices(self) -> Iterator[BandChoice]:
        """Yield choices of decreasing load and increasing work, beginning with no bands."""
        target = max(self.load, default=0)
        found: BandChoice | None = BandChoice((), target, 1.0)
        while found and found.load <= target:
            yield found
            target = found.load - 1
            found = self._path(target)

    def _bands_of(self, region: Region) -> Iterator[Bands]:
        """Yield a region in bands, for each number of bands whose parts begin at aligned
        addresses."""
        chain = self.chain
        row = self._row_bytes(region.result)
        total = chain.rows(region.result)
        for count in counts(total):
            rows = -(-total // count)
            if row * rows % self.alignment or row * (total - rows) % self.alignment:
                continue
            yield from chain.bands(region, count)

    def _row_bytes(self, tensor: int) -> int:
        """Return the bytes of a row of a feature map."""
        return row_bytes(self.chain.subgraph.tensors[tensor])

    def _repeated_work(self, bands: Bands, work: Sequence[int]) -> float:
        """Return the sum over a region's operators of the ``work`` of the repeated rows."""
        return sum(
            work[number] * (bands.count * bands.heights[tensor] / self.chain.rows(tensor) - 1)
            for number in range(bands.region.first, bands.region.last)
            for tensor in self.chain.subgraph.operators[number].outputs
        )

    def _time(self, chosen: Sequence[Bands]) -> float:
        """Return the ratio of the estimated time to that of the network."""
        operators, elements = self.chain.subgraph.operators, self._row_elements
        each = [
            work * (_DEPTHWISE if op.kind == "DEPTHWISE_CONV_2D" else 1)
            for work, op in zip(self.work, operators, strict=True)
        ]
        more = 0.0
        for bands in chosen:
            copied = bands.height * elements(bands.region.source)
            copied += sum(cut.rows * elements(cut.tensor) for cut in bands.cuts)
            more += self._repeated_work(bands, each) + _COPIED * bands.count * copied
        return 1 + more / max(1, sum(each))

    def _row_elements(self, tensor: int) -> int:
        """Return the number of elements of a row of a feature map."""
        entry = self.chain.subgraph.tensors[tensor]
        return entry.count // entry.shape[1]

    def _peak(self, bands: Bands) -> int:
        """Return a lower bound in bytes of the arena's peak while a region runs in bands."""
        region, chain = bands.region, self.chain
        own = {region.source} | {
            t for op in chain.subgraph.operators[region.first : region.last] for t in op.outputs
        }
        across = sum(
            self.size[t]
            for t, first in self.born.items()
            if t not in own and first <= region.first <= chain.last_use.get(t, -1)
        )
        source, result = self._row_bytes(region.source), self._row_bytes(region.result)
        inner, slice_ = self._inner_peak(bands), rounded(bands.height * source)
        whole = self.size[region.source]
        stays = chain.last_use.get(region.source, 0) >= region.last
        before = [whole if stays else whole - start * source for start in bands.starts]
        after = [*before[1:], whole if stays else 0]
        most = self.size[region.result]
        for band, top in enumerate(bands.tops):
            made, ready = (top + bands.rows) * result, band * bands.rows * result
            # The subgraph's tensors have the same addresses in all bands, so they must not overlap
            # the result of their own band, which later bands keep. The last band may overlap it;
            # that is used only if a residual is kept, because it makes packing harder.
            is_last = band + 1 == bands.count
            clear = rounded(ready if is_last and len(region.kept) > 1 else made)
            most = max(most, before[band] + ready + slice_, after[band] + max(clear + inner, made))
        return across + most

    def _inner_peak(self, bands: Bands) -> int:
        """Return the peak in bytes of a subgraph's own tensors in one band."""
        region = bands.region
        operators = self.chain.subgraph.operators
        row = {t: self._row_bytes(t) for t in bands.heights}
        last = {t: n for n in range(region.first, region.last) for t in operators[n].inputs}
        last[region.result] = region.last
        alive = {region.source: rounded(bands.height * row[region.source])}
        loads = [0]
        for number in range(region.first, region.last + 1):
            for cut in bands.cuts:
                if cut.before == number:
                    kept = rounded(cut.rows * row[cut.tensor])
                    loads.append(sum(alive.values()) + kept)
                    alive[cut.tensor] = kept
            if number < region.last:
                (made,) = operators[number].outputs
                alive[made] = rounded(bands.heights[made] * row[made])
                loads.append(sum(alive.values()))
                alive = {t: each for t, each in alive.items() if last.get(t, -1) > number}
        return max(loads)

    def _path(self, target: int) -> BandChoice | None:
        """Return the choice of bands with the least work whose peak is at most ``target`` bytes, as
        a shortest path; None if there is none."""
        best = {0: _Path(1.0, 0, (), 0)}
        for at, edges in enumerate(self.edges):
            for work, peak, bands, end in edges if at in best else ():
                here = best[at]
                path = _Path(here.work + work, max(here.peak, peak), here.bands + bands, end)
                if peak <= target and (end not in best or path[:2] < best[end][:2]):
                    best[end] = path
        found = best.get(len(self.edges))
        if found is None:
            return None
        work = round(found.work - _BAND_COST * sum(each.count for each in found.bands), 9)
        return BandChoice(found.bands, found.peak, work, time=self._time(found.bands))
