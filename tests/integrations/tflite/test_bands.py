"""Networks in bands: the same bits from TFLM's interpreter, in the head that was foretold; and what
is not right is found."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support.fuzzing import FUZZ
from tests.support.needs import FIXTURES
from tests.support.nightly import by_night
from tests.support.tables import cases
from tests.support.tflite_bands import another_order, convolutional
from tests.support.tflite_models import branches, one_operator, started

import loadmaster as lm
from loadmaster.core.errors import AllocationError, ModelError
from loadmaster.integrations.tflite.arena import TensorArena, plan_arena
from loadmaster.integrations.tflite.bands import shrink
from loadmaster.integrations.tflite.bands.order import least_order
from loadmaster.integrations.tflite.bands.plan import banded_problem
from loadmaster.integrations.tflite.bands.regions import RowChain, counts
from loadmaster.integrations.tflite.bands.rewrite import in_bands, in_order
from loadmaster.integrations.tflite.bands.rows import RowRule, RowSlice
from loadmaster.integrations.tflite.bands.search import BandSearch
from loadmaster.integrations.tflite.bands.shrink import banded, front_of, shrink_model
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.interpreter import measure
from loadmaster.integrations.tflite.lifetimes import lifetimes, plan_entries
from loadmaster.integrations.tflite.planned_file import with_plan
from loadmaster.integrations.tflite.rewritten import check_rewritten
from loadmaster.integrations.tflite.scratch import UNKNOWN
from loadmaster.workloads.frontends.tflite.model import parse_model
from loadmaster.workloads.graph import TensorKind

pytest.importorskip("tflite_micro")
from tests.support.tflm import same_outputs

FIXTURE = FIXTURES / "wake-words.tflite"


def planned(data, chosen):
    """The file in bands with a plan, and its head."""
    model = parse_model(in_bands(parse_model(data), chosen))
    found = lifetimes(model)
    arena = TensorArena(found, UNKNOWN)
    plan = plan_arena(arena, banded_problem(model, arena, chosen, 16))
    return with_plan(model, plan_entries(found, plan.offsets)), plan.head


def chain_of(data):
    return RowChain(parse_model(data))


def aligned_bands(data):
    search = BandSearch(chain_of(data))
    return [bands for edges in search.edges for edge in edges for bands in edge.bands]


def tried_in_bands(seed):
    """Whether a random network in random bands, its operators in a random order and PADs folded as
    far as they can be, gives the same bits in the head that was foretold; None where it has no
    bands. The static check takes it."""
    old, rng = convolutional(seed), random.Random(seed)
    model = parse_model(old)
    changed = old
    if seed % 3:
        order = another_order(model.subgraphs[0], rng)
        changed = in_order(model, order, RowChain(model).folds() if seed % 3 == 1 else {})
    every = aligned_bands(changed)
    if not every:
        return None
    first = rng.choice(every)
    later = [each for each in every if each.region.first >= first.region.last]
    new, head = planned(changed, [first, *(rng.sample(later, 1) if later and seed % 2 else ())])
    assert check_rewritten(old, new) <= head
    return same_outputs(old, new, seeds=(seed,)) and measure(new, head).head == head


def test_an_operator_that_writes_what_is_there_is_named(tmp_path):
    """An operator over its own operand, a second writer, and one of the network's input."""
    for kind, read, written in (("RELU", "a", "a"), ("TANH", "b", "a"), ("RELU", "x", "x")):
        model, net = started()
        tensors = {"x": net.input((1, 8, 8, 4))}
        tensors["a"] = net.conv(tensors["x"], 4, 3)
        tensors["b"] = net.out("RELU", [tensors["a"]], (1, 8, 8, 4))
        net.op(kind, [tensors[read]], [tensors[written]])
        net.outputs.append(net.conv(tensors["a"], 4, 3))
        path = model.save(tmp_path)
        with pytest.raises(shrink.NotInBands, match=rf"operator 2 \({kind}\) writes a tensor that"):
            shrink_model(path, extra_work=0.5)
        with pytest.raises(
            ModelError, match=rf"operator '{kind}_2' .* writes tensor .t.., which is"
        ):
            lm.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *by_night(1, 2, 3)])
def test_random_networks_in_random_bands_give_the_same_bits(part):
    """Strides, dilation, odd sizes, both paddings, PAD, pools, residuals and branches; int8, int16
    and float. ``LOADMASTER_FUZZ=20`` tries 2,000."""
    count = max(1, round(100 * FUZZ))
    found = {seed: tried_in_bands(seed) for seed in range(part * count, part * count + count)}
    assert False not in found.values(), [seed for seed, each in found.items() if each is False]
    assert sum(each is not None for each in found.values()) > 0.6 * count


@pytest.mark.slow
def test_heads_fall_as_work_grows_and_are_what_the_interpreter_takes():
    choices = list(BandSearch(chain_of(FIXTURE.read_bytes())).choices())
    assert len(choices) > 5
    for one, two in itertools.pairwise(choices):
        assert (two.load, -two.work) <= (one.load - 1, -one.work)
    for choice in choices[:3]:
        new, head = planned(FIXTURE.read_bytes(), list(choice.bands))
        assert choice.load <= head <= 1.05 * choice.load
        assert measure(new, head).head == head


@pytest.mark.slow
def test_an_arena_that_is_asked_for_is_met_with_the_least_work():
    small = shrink_model(FIXTURE, arena=46 * 1024)
    assert small.after.least <= 46 * 1024
    assert small.plan.head == small.after.head == 36_864
    assert small.work < 1.05
    assert small.bands == ((0, 0, 6), (2, 3, 3))
    allowed = shrink_model(FIXTURE, extra_work=0.0)
    assert (allowed.plan.head, allowed.work) == (46_080, 1.0)
    with pytest.raises(AllocationError, match="no bands that were tried make the arena"):
        shrink_model(FIXTURE, arena=20 * 1024)


@pytest.mark.slow
@pytest.mark.parametrize("alignment", [16, 64])
def test_bands_whose_tail_takes_more_than_they_save_are_left_out(tmp_path, alignment):
    """Heads of a few kilobytes: the structures of bands take more than bands free, so that the
    smallest head needs the larger arena. Larger alignments may enlarge the head."""
    for seed in (0, 1, 3, 9):
        path = tmp_path / f"{seed}.tflite"
        path.write_bytes(convolutional(seed))
        whole, *bands = BandSearch(chain_of(path.read_bytes()), alignment).choices()
        assert bands[-1].load < whole.load
        front = front_of(path.read_bytes(), alignment)
        plan = export_model(path, alignment=alignment)
        assert shrink_model(path, extra_work=0.0, alignment=alignment).least <= plan.least
        sizes, works = zip(*((each.size, each.work) for each in front.choices), strict=True)
        assert list(sizes) == sorted(sizes, reverse=True)
        assert list(works[1:]) == sorted(works[1:])


def refused_twice(monkeypatch, checked, run):
    """A file is refused by the check, and when it is run without it."""
    with pytest.raises(AllocationError, match=checked):
        shrink_model(FIXTURE, extra_work=0.05)
    monkeypatch.setattr(shrink, "check_rewritten", lambda *_: 0)
    with pytest.raises(AllocationError, match=run):
        shrink_model(FIXTURE, extra_work=0.05)


@pytest.mark.slow
def test_a_file_that_gives_other_results_is_not_handed_out(monkeypatch):
    """As if a slice began a row too early, in each of the ways in which a writer could err."""
    right = RowChain.bands

    def early(chain, region, count):
        for bands in right(chain, region, count):
            if bands.starts[1]:
                yield replace(bands, starts=(0, *(start - 1 for start in bands.starts[1:])))

    monkeypatch.setattr(RowChain, "bands", early)
    refused_twice(monkeypatch, "the check of the rewritten file", "gives other results")


@pytest.mark.slow
def test_addresses_that_overlap_are_found_by_running(monkeypatch):
    entries = plan_entries

    def moved(found, offsets):
        wrong = list(offsets)
        largest = max(range(len(found.tensors)), key=lambda at: found.tensors[at].bytes)
        wrong[largest] = 0 if wrong[largest] else 16
        return entries(found, wrong)

    monkeypatch.setattr(shrink, "plan_entries", moved)
    planned = "not .* as planned"
    refused_twice(monkeypatch, f"over it|over an operand|{planned}", f"other results|{planned}")


def test_what_cannot_run_in_bands_says_why(tmp_path):
    model = one_operator("RELU", "1x4x4x8", "", "1x4x4x8", None)
    model.subgraph()
    with pytest.raises(ModelError, match="several subgraphs"):
        front_of(model.bytes())
    dense = one_operator("FULLY_CONNECTED", "1x64", "8x64 8", "1x8", {0: 0})
    with pytest.raises(AllocationError, match="no bands that were tried make the arena"):
        shrink_model(dense.save(tmp_path), arena=64)


def test_a_slice_is_right_where_windows_see_what_they_would_see_in_the_whole():
    """3 x 3 with SAME padding on 8 rows: an inner slice spoils a row at each end; a stride of 2
    needs slices that begin at even rows."""
    rule = RowRule(stride=1, taps=3, same=True)
    assert rule.applied(RowSlice(0, 4, 0, 4), 8) == RowSlice(0, 4, 0, 3)
    assert rule.applied(RowSlice(2, 4, 2, 6), 8) == RowSlice(2, 4, 3, 5)
    assert rule.applied(RowSlice(4, 4, 4, 8), 8) == RowSlice(4, 4, 5, 8)
    halving = RowRule(stride=2, taps=3, same=True)
    assert halving.applied(RowSlice(1, 4, 1, 5), 8) is None
    assert halving.applied(RowSlice(2, 4, 2, 6), 8) == RowSlice(1, 2, 1, 2)


@pytest.mark.slow
def test_bands_are_as_high_as_one_another_and_cover_the_result():
    for seed in range(40):
        chain = chain_of(convolutional(seed))
        for region in chain.regions():
            for count in counts(chain.rows(region.result)):
                for bands in chain.bands(region, count):
                    ends = [0, *(top + bands.rows for top in bands.tops)]
                    assert all(top <= end for top, end in zip(bands.tops, ends, strict=False))
                    assert ends[-1] == chain.rows(region.result)
                    assert bands.again == bands.count * bands.rows - ends[-1]
                    assert max(bands.starts) + bands.height <= chain.rows(region.source)
                    for band, top in enumerate(bands.tops):
                        made = made_by(chain, bands, band)
                        assert (made.start, made.height) == (top, bands.rows)
                        assert made.first <= top
                        assert top + bands.rows <= made.last


def made_by(chain, bands, band):
    """What a band makes, operator by operator."""
    region, start = bands.region, bands.starts[band]
    here = {region.source: RowSlice(start, bands.height, start, start + bands.height)}
    operators = chain.subgraph.operators[region.first : region.last]
    for number in range(region.first, region.last + 1):
        for cut in (cut for cut in bands.cuts if cut.before == number):
            whole, begin = here[cut.tensor], cut.begins[band]
            assert 0 <= begin <= whole.height - cut.rows
            here[cut.tensor] = replace(whole, start=whole.start + begin, height=cut.rows)
        if number < region.last:
            operator, rule = operators[number - region.first], chain.rules[number]
            parts = [rule.applied(here[t], chain.rows(t)) for t in operator.inputs if t in here]
            first = parts[0]
            assert all(part and part.start == first.start for part in parts)
            right = [(part.first, part.last) for part in parts if part]
            here[operator.outputs[0]] = replace(
                first, first=max(a for a, _ in right), last=min(b for _, b in right)
            )
            if region.rest > number:
                assert here[operator.outputs[0]].height == bands.heights[operator.outputs[0]]
    return here[region.result]


@pytest.mark.parametrize("seed", [12, 36, 60, 89])
def test_no_simple_strategy_packs_bands_lower_than_auto(seed):
    """Rows that are freed one by one leave windows in which the exact search proves nothing."""
    front = front_of(convolutional(seed))
    for choice in front.choices[1:]:
        problem = banded(front, choice).problem
        peak = lm.allocate(problem).peak
        for strategy in ("best-fit", "exact", "greedy", "local-search", "telamalloc"):
            assert lm.allocate(problem, strategy=strategy).peak >= peak


def test_rows_that_a_pad_spoils_are_dropped_before_a_stride():
    """Expanded, padded, halved: without a cut behind the PAD a band of 2 rows expands 6, not 5."""
    model, net = started()
    value = net.pad(net.conv(net.input("1x16x4x4"), 8), (1, 1), (1, 1))
    options = {0: 1, 1: 2, 2: 2, 3: 1, 5: 1, 6: 1}
    operands = [value, net.tensor("1x3x3x8", data=1), net.tensor("8", data=1)]
    net.last("DEPTHWISE_CONV_2D", operands, "1x8x2x8", options)
    chain = chain_of(model.bytes())
    (region,) = (each for each in chain.regions() if (each.first, each.last) == (0, 3))
    plain, cut = chain.bands(region, 4)
    assert (plain.height, cut.height) == (6, 5)
    assert [(each.before, each.rows, each.begins) for each in cut.cuts] == [(2, 5, (0, 1, 1, 1))]


@pytest.mark.slow
def test_the_network_in_bands_is_read_by_every_command(tmp_path):
    path = tmp_path / "small.tflite"
    path.write_bytes(shrink_model(FIXTURE, extra_work=0.05).data)
    old, new = lm.load(FIXTURE), lm.load(path)
    assert not new.subgraph_ops
    assert new.bytes_of(TensorKind.WEIGHT) == old.bytes_of(TensorKind.WEIGHT)
    assert 1 <= sum(op.macs for op in new.ops) / sum(op.macs for op in old.ops) <= 1.05


@pytest.mark.slow
def test_the_order_of_the_least_load_is_found_and_computes_the_same(tmp_path):
    """Three branches that each make much of little and little of much, written breadth first: any
    other order is tried."""
    model = branches(16, 12, 8)
    old = model.bytes()
    main = parse_model(old).subgraphs[0]
    found = least_order(main)

    def load(order):
        return max(BandSearch(chain_of(in_order(parse_model(old), order, {}))).load)

    valid = [
        (*order, 6)
        for order in itertools.permutations(range(6))
        if all(order.index(n) < order.index(n + 3) for n in range(3))
    ]
    assert len(valid) == 90
    assert found.load == min(map(load, valid)) == load(found.operators) < load(tuple(range(7)))
    new = in_order(parse_model(old), found.operators, {})
    check_rewritten(old, new)
    assert same_outputs(old, new)
    small = shrink_model(model.save(tmp_path), extra_work=0.0)
    assert small.plan.head <= found.load + sum(each.bytes for each in small.arena.scratch.buffers)


@pytest.mark.slow
def test_an_order_is_found_soon_where_there_are_too_many_to_try_all():
    """Eighty branches, written breadth first: 2^80 sets of operators."""
    model, net = started()
    value = net.input("1x4x4x4")
    grown = [
        net.out("TILE", [value, net.ints(1, 1, 1, n + 1)], (1, 4, 4, 4 * n + 4)) for n in range(80)
    ]
    means = list(map(net.mean, grown))
    net.last("CONCATENATION", means, "1x1x1x12960", {0: 3})
    main = parse_model(model.bytes())
    assert least_order(main.subgraphs[0]).load < 0.2 * max(BandSearch(RowChain(main)).load)


def test_padding_is_left_out_where_a_convolution_pads_as_much():
    for rows, folded in (((1, 1), 1), ((2, 0), 0)):
        model, net = started()
        scaled = {"dtype": "int8", "scale": (0.1,), "zero": 3}
        padded = net.pad(net.input("1x6x6x4", **scaled), rows, (1, 1), **scaled)
        values = np.arange(144).reshape(4, 3, 3, 4) - 70
        weights = net.tensor("4x3x3x4", "int8", values, scale=(0.01,) * 4)
        bias = net.tensor("4", "int32", 0, scale=(0.001,) * 4)
        options = {0: 1, 1: 1, 2: 1, 4: 1, 5: 1}
        net.last("CONV_2D", [padded, weights, bias], "1x6x6x4", options, **scaled)
        old = model.bytes()
        folds = chain_of(old).folds()
        assert len(folds) == folded
        if folds:
            new = in_order(parse_model(old), range(2), folds)
            assert [op.kind for op in parse_model(new).subgraphs[0].operators] == ["CONV_2D"]
            check_rewritten(old, new)
            assert same_outputs(old, new)
            with pytest.raises(AllocationError, match="nothing in the old file"):
                check_rewritten(old, in_order(parse_model(old), range(2), {1: weights}))


def test_images_of_a_type_that_tflm_cannot_slice_are_in_no_region():
    model, net = started()
    value = net.out("QUANTIZE", [net.input("1x16x4x4", "uint8")], dtype="int8")
    value = net.out("RELU", [value], dtype="int8")
    net.last("QUANTIZE", [value], dtype="uint8")
    chain = chain_of(model.bytes())
    assert [(each.first, each.last) for each in chain.regions()] == [(1, 2)]


def test_a_network_without_operators_has_no_bands():
    model, net = started()
    net.outputs.append(net.input("1x8x8x4"))
    assert [choice.bands for choice in front_of(model.bytes()).choices] == [()]


def test_what_nothing_reads_is_in_no_region():
    """Beside what becomes the result, operators whose results nobody wants, the last a PAD."""
    model, net = started()
    value = net.input("1x16x4x4")
    net.pad(net.conv(value, 4, taps=3), (1, 1))
    net.last("RELU", [value])
    chain = chain_of(model.bytes())
    regions = {(each.first, each.last) for each in chain.regions()}
    assert regions == {(0, 1), (0, 2), (1, 2), (2, 3)}
    assert aligned_bands(model.bytes())


def test_padding_with_a_number_runs_in_bands():
    model, net = started()
    value = net.conv(net.input("1x16x4x4"), 16)
    pads = net.ints((0, 0), (1, 1), (1, 1), (0, 0))
    operands = [value, pads, net.tensor("1", data=7.0)]
    value = net.out("PADV2", operands, "1x18x6x16")
    net.outputs.append(net.conv(value, 4, taps=3))
    old = model.bytes()
    search = aligned_bands(old)
    bands = next(each for each in search if (each.region.first, each.region.last) == (0, 3))
    new, head = planned(old, [bands])
    assert check_rewritten(old, new) <= head
    assert same_outputs(old, new)


def test_two_pads_before_a_convolution_run_in_bands(tmp_path):
    """The outer one becomes padding of the convolution, the inner one stays."""
    model, net = started()
    value = net.pad(net.conv(net.input("1x16x16x8"), 8), (1, 1))
    value = net.conv(net.pad(value, (1, 1), (1, 1)), 4, 3, padding=1)
    net.outputs.append(net.conv(value, 2))
    found = shrink_model(model.save(tmp_path), extra_work=0.05)
    assert found.plan.head < found.plan.head_before
    assert same_outputs(model.bytes(), found.data)


def test_two_paddings_of_one_tensor_are_told_apart():
    """Both add a row above, and one more below than the other."""
    model, net = started()
    value = net.conv(net.input("1x8x4x4"), 4)
    for below in (2, 0):
        net.outputs.append(net.pad(value, (1, below)))
    old = model.bytes()
    new, head = planned(old, [])
    assert check_rewritten(old, new) <= head


OPTIONS = {
    "CONV_2D": {0: 0, 1: 1, 2: 1, 4: 1, 5: 1},
    "MAX_POOL_2D": {0: 0, 1: 1, 2: 1, 3: 3, 4: 3},
}


@pytest.mark.parametrize(
    ("kind", "operands", "shape", "zero"),
    cases("""
        CONV_2D | 4x3x3x4 | 1x16x4x4 | 1
        CONV_2D | 4x3x3x4 | 1x16x4x4 | 2
        CONV_2D | 4x3x3x4 | 1x12x4x4 |
        CONV_2D | 4x3 | 1x16x4x4 |
        CONV_2D | | 1x16x4x4 |
        CONV_2D | 4x3x3x4 | 16x4x4 |
        MAX_POOL_2D | | 1x16x0x4 |
        PAD | int32:2x2 | 1x18x6x4 |
        PAD | int32:4x2 | 1x18x6x4 |
        PAD | | 1x16x4x4 |
        RELU | | 1x16x0x4 |
    """),
)
def test_operators_that_do_not_fit_their_tensors_are_in_no_region(kind, operands, shape, zero):
    options = OPTIONS.get(kind)
    if zero:  # the number of a stride
        options = options | {int(zero): 0}
    data = one_operator(kind, "1x16x4x4", operands, shape, options).bytes()
    assert not list(chain_of(data).regions())
    assert [choice.bands for choice in front_of(data).choices] == [()]


def test_a_tensor_that_nothing_makes_is_no_reason_to_reorder_for_ever():
    """The least load of any order was counted without it, and that of each network with it."""
    model, net = started()
    value, unmade = net.input("1x4x4x4"), net.tensor("1x4x4x4")
    large = [net.conv(net.out("ADD", [value, unmade], "1x4x4x4", {0: 0}), n) for n in (16, 12)]
    means = list(map(net.mean, large))
    net.last("ADD", means, "1x1x1x1", {0: 0})
    main = parse_model(model.bytes())
    found = least_order(main.subgraphs[0])
    new = in_order(main, found.operators, {})
    assert found.load == max(BandSearch(chain_of(new)).load)
    assert len(front_of(model.bytes()).variants) == 2


def test_an_input_that_nothing_reads_is_not_kept():
    model = branches(16, 12, 8)
    load = least_order(parse_model(model.bytes()).subgraphs[0]).load
    model.subgraphs[0].input("1x4x4x4")
    main = parse_model(model.bytes())
    found = least_order(main.subgraphs[0])
    assert found.load == load
    assert max(BandSearch(chain_of(in_order(main, found.operators, {}))).load) == load


def test_an_operator_of_constants_is_in_no_region(tmp_path):
    model, network = started()
    value = network.conv(network.input((1, 64, 32, 4)), 16, 3)
    constant = network.tensor((1, 1, 1, 16), "int8", 3, scale=(0.1,), zero=0)
    factor = network.out("DEQUANTIZE", [constant], (1, 1, 1, 16))
    network.outputs = [network.conv(network.out("MUL", [value, factor], options={0: 0}), 4, 3, 2)]
    for region in chain_of(model.bytes()).regions():
        assert not region.first <= 1 < region.last
    assert export_model(model.save(tmp_path)).least > 0


@pytest.mark.slow
def test_an_arena_that_a_left_out_padding_reaches_may_be_asked_for(tmp_path):
    """Each PAD that is left out takes less of the tail, too."""
    model, network = started()
    value = network.input("1x16x16x4")
    for _ in range(4):
        value = network.conv(network.pad(value, (1, 1), (1, 1)), 4, 3, padding=1)
    network.outputs = [value]
    path = model.save(tmp_path)
    found = shrink_model(path, extra_work=0.0)
    assert shrink_model(path, arena=found.least).least == found.least < export_model(path).least


def test_work_is_that_of_the_whole_network(tmp_path):
    """Also of fully connected layers and transposed convolutions, which are in no region."""
    model, network = started()
    value = network.conv(network.conv(network.input("1x32x32x4"), 16, 3), 4, 3, 2)
    weights = network.tensor((16, 5, 5, 4), data=0.01)
    wide = [network.ints(1, 32, 32, 16), weights, value]
    wide = network.out("TRANSPOSE_CONV", wide, (1, 32, 32, 16), {0: 0, 1: 2, 2: 2})
    flat = network.out("RESHAPE", [value, network.ints(1, 1024)], (1, 1024), {})
    dense = [flat, network.tensor((200, 1024), data=0.01), -1]
    network.outputs = [wide, network.out("FULLY_CONNECTED", dense, (1, 200), {0: 0})]
    front = front_of(model.bytes())
    (tmp_path / "bands.tflite").write_bytes(banded(front, front.choices[1]).data)
    before = sum(op.macs for op in lm.load(model.save(tmp_path)).ops)
    after = sum(op.macs for op in lm.load(tmp_path / "bands.tflite").ops)
    assert front.choices[1].work == pytest.approx(after / before)


def test_a_file_that_does_not_run_as_it_is_is_named(tmp_path):
    """TFLM loads NEG of int8, and cannot invoke it."""
    model, network = started()
    value = network.input("1x16x8x4", "int8", scale=(0.1,))
    value = network.out("NEG", [value], dtype="int8", scale=(0.1,))
    network.outputs = [network.out("NEG", [value], dtype="int8", scale=(0.1,))]
    with pytest.raises(ModelError, match="cannot run it as it is"):
        shrink_model(model.save(tmp_path), extra_work=0.5)
