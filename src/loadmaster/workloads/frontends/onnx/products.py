"""Products as loop nests: matrix products, by numpy's rules and by the equation of ``Einsum``,
recurrent cells, and convolutions; with these pooling, whose windows pass over the spatial
dimensions as theirs do."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import (
    GATE_STEPS,
    NCHWC,
    WHOLE,
    Division,
    KnownShape,
    Node,
    Result,
    Work,
    aligned,
    divided,
    named,
    product,
    reduction,
    rule,
    runtime_rule,
    variant,
    with_first_type,
)
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, SUMMED, Shape, Window, Windows, identity

Term = tuple[str, ...]


def _factors(node: Node, b: int = 1) -> tuple[dict[int, Term], Term]:
    """Return the labels of a matrix product by numpy's rules: of its factors, operands 0 and ``b``
    with their transposing attributes, and of its result."""
    terms: dict[int, Term] = {}
    for index, letter, both in ((0, "A", ("row", "inner")), (b, "B", ("inner", "column"))):
        rank = len(node.shape(index))
        own: Term = both if rank > 1 else ("inner",)
        own = own[::-1] if node.attrs.get(f"trans{letter}") else own
        first = 1 if node.attrs.get(f"transBatch{letter}") else 0
        terms[index] = (*own[:first], *_dots(rank - 2), *own[first:])
    lead = _dots(max(map(len, terms.values())) - 2)
    kept = [label for label in ("row", "column") if any(label in each for each in terms.values())]
    return terms, (*lead, *kept)


def _dots(count: int) -> Term:
    """Return the labels of the dimensions of an ellipsis, counted from the right."""
    return tuple(f".{axis}" for axis in range(count - 1, -1, -1))


def _extents(node: Node, terms: Mapping[int, Term]) -> dict[str, int]:
    """Return the extent of each label. A dimension of size 1 is broadcast, unless it is one of the
    matrix's own."""
    extents: dict[str, int] = {}
    for index, term in terms.items():
        for label, size in zip(term, node.shape(index), strict=True):
            known = extents.setdefault(label, size)
            if size != known and (label == "inner" or 1 not in (size, known)):
                raise ModelError(
                    f"its operands differ along a dimension that they share, {known} and {size}:"
                    " the file is damaged, export it again"
                )
            extents[label] = size if known == 1 else known
    return extents


def _varying_labels(node: Node, index: int, term: Term) -> set[str]:
    """Return the labels that an operand varies over; a dimension of size 1 is broadcast."""
    return {label for label, size in zip(term, node.shape(index), strict=True) if size != 1}


def _nests(node: Node, terms: Mapping[int, Term], target: Term) -> list[LoopNest]:
    """Return the loop nests of pairwise products from left to right. Labels of one operand alone
    are summed before they enter a product.

    Shared labels that later operands or the result have are groups; other shared labels are summed
    over. Leading dimensions that the right factor lacks are further rows of the same product
    (``y``) if it lacks them all, otherwise runs over the same weight (``batch``).
    """
    extents, nests, (first, *others) = _extents(node, terms), [], terms
    left, name = _varying_labels(node, first, terms[first]), node.label(first)
    for place, index in enumerate(others, 1):
        right = _varying_labels(node, index, terms[index])
        later = set(target).union(*(terms[each] for each in others[place:]))
        groups = {label for label in right & later if label in left or label[0] == "."}
        rows = (left - groups) & later
        runs = {label for label in rows if label[0] == "." and groups}

        def extent(labels: Set[str]) -> int:
            """Return the product of the extents of labels."""
            return math.prod(extents[label] for label in labels)

        nests.append(
            LoopNest(
                k=extent((right - groups - left) & later),
                c=extent((left & right) - later),
                y=extent(rows - runs),
                groups=extent(groups),
                batch=extent(runs),
                input=name,
                weight=node.label(index),
                output=node.result.name if place == len(others) else "",
            )
        )
        left, name = (left | right) & later, ""
    return nests


def _matmul(node: Node, b: int = 1, data: int = 0) -> Work:
    """Return the work of a matrix product with weight ``b``."""
    return product(*_nests(node, *_factors(node, b)), data=data)


def _product_division(
    node: Node, terms: Mapping[int, Term], target: Term, inner: Window = ALL
) -> Division:
    """Return how one product divides: along every dimension of the result. ``inner`` is the window
    of the summed dimensions."""
    if len(target) != node.rank:
        return WHOLE
    extents = _extents(node, terms)
    operands: dict[int, Windows] = {}
    for index, term in terms.items():
        sizes = zip(term, node.shape(index), strict=True)
        operands[index] = tuple(
            inner
            if label not in target
            else Window(target.index(label))
            if size == extents[label]
            else ALL
            for label, size in sizes
        )
    first, last = min(terms), max(terms)
    left, right = (_varying_labels(node, index, terms[index]) for index in (first, last))
    groups = {label for label in right & {*target} if label in left or label[0] == "."}
    rows = "batch" if groups else "y"
    loops = {label: "y" if label in terms[first] else "channels" for label in target}
    loops |= dict.fromkeys(right, "channels") | {a: rows for a in target if a[0] == "."}
    loops |= dict.fromkeys(groups, "groups")
    return divided(operands, tuple(loops[label] for label in target))


def _division(node: Node, b: int = 1, inner: Window = ALL, bias: int = 0) -> Division:
    """Return how a matrix product divides: by rows, columns and all dimensions before them.

    ``inner`` is the window of the dimension that both operands share. It can be cut only if the
    operator does nothing but sum the products.
    """
    found = _product_division(node, *_factors(node, b), inner)
    return _with_added(found, node, bias) if bias else found


def _with_added(found: Division, node: Node, index: int) -> Division:
    """Return a division with the windows of operand ``index``, which is added to the result."""
    if found.operands and node.optional(index):
        found.operands[index] = aligned(node.shape(index), node.result.shape)
    return found


def _product_shape(node: Node, typed: int = 0, b: int = 1) -> list[Result]:
    """Return type and shape of a matrix product by numpy's rules; operand ``typed`` has its
    type."""
    terms, target = _factors(node, b)
    extents = _extents(node, terms)
    return [(node.operand(typed).dtype, tuple(extents[label] for label in target))]


rule("MatMul", _matmul, partial(_division, inner=SUMMED))
rule("MatMulInteger", _matmul, _division)
rule("QLinearMatMul", partial(_matmul, b=3), partial(_division, b=3))
rule("Gemm", _matmul, partial(_division, inner=SUMMED, bias=2))
# An activation follows the sum, which therefore cannot be in parts.
variant("FusedGemm", like="Gemm", division=partial(_division, bias=2))
runtime_rule("FusedMatMul TransposeMatMul", _matmul, _division, shapes=_product_shape)
runtime_rule("MatMulIntegerToFloat", _matmul, _division, shapes=partial(_product_shape, typed=2))
# Eight bits if the result has a zero point, else the scales' type.
runtime_rule(
    "QGemm",
    partial(_matmul, b=3),
    shapes=lambda node: _product_shape(node, 0 if node.optional(8) else 1, 3),
)


def _dynamic_matmul(node: Node) -> Work:
    """Return the work of a product whose floating operand is quantised at run time, at the width of
    the weight."""
    return replace(_matmul(node, data=1), elements=node.operand(0).count)


def _dynamic_division(node: Node) -> Division:
    """Return how such a product divides: by columns, as its scale is that of the whole operand."""
    found = _division(node)
    return divided({1: found.operands[1]}, found.loops) if found.operands else WHOLE


runtime_rule("DynamicQuantizeMatMul", _dynamic_matmul, _dynamic_division, like="MatMul")


def _packed_matmul(node: Node) -> Work:
    """Return the work of a product with a packed weight, whose logical shape is in attributes."""
    inner = node.attrs["K"]
    rows = node.operand(0).count // inner
    return product(named(node, LoopNest(node.attrs["N"], inner, rows)))


def _packed_division(node: Node) -> Division:
    """Return how a product with a packed weight divides: weights, scales and zero points are packed
    column by column."""
    rank, columns = node.rank, node.attrs["N"]
    operands: dict[int, Windows] = {0: (*identity(rank - 1), ALL)}
    for index in (1, 2, 3, 5):
        value = node.optional(index)
        if value is not None and value.shape and value.shape[0] % columns == 0:
            each = value.shape[0] // columns
            operands[index] = (Window(rank - 1, unit=each), *(ALL for _ in value.shape[1:]))
    return divided(operands, (*("y" for _ in range(rank - 1)), "channels"))


def _packed_shape(node: Node) -> list[Result]:
    """Return type and shape of a product with a packed weight of N columns."""
    return with_first_type(node, (*node.shape(0)[:-1], node.attrs["N"]))


runtime_rule("MatMulNBits", _packed_matmul, _packed_division, shapes=_packed_shape)


def _equation(node: Node) -> tuple[dict[int, Term], Term]:
    """Return the labels of each operand and of the result; labels of an ellipsis begin with a
    dot."""
    equation = node.attrs["equation"]
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(node.present):
        raise ModelError(
            f"equation {equation!r} does not fit its {len(node.present)} operands: export the"
            " network again"
        )
    terms = {i: _labels(text, len(node.shape(i))) for i, text in enumerate(texts)}
    flat = [label for term in terms.values() for label in term]
    dots = _dots(len({label for label in flat if label[0] == "."}))
    if arrow:
        return terms, _labels(right, len(dots) + len(right.replace("...", "")))
    single = {label for label in flat if label[0] != "." and flat.count(label) == 1}
    return terms, (*dots, *sorted(single))


def _labels(text: str, rank: int) -> Term:
    """Return the dimension labels of one Einsum term, with the ellipsis spelled out for ``rank``
    dimensions."""
    before, dots, after = text.partition("...")
    missing = rank - len(before) - len(after) if dots else 0
    if missing < 0 or (not dots and len(text) != rank):
        raise ModelError(
            f"term {text!r} of its equation does not fit an operand with {rank} dimensions: export"
            " the network again"
        )
    return (*before, *_dots(missing), *after)


def _einsum(node: Node) -> Work:
    """Return the work of an Einsum: products of its terms, a reduction, or a movement of
    elements."""
    terms, target = _equation(node)
    if len(terms) > 1:
        return product(*_nests(node, terms, target))
    if set(terms[0]) - set(target):
        return reduction(node.operand(0).count)
    return Work(OpClass.MOVEMENT)


def _einsum_division(node: Node) -> Division:
    """Return how an Einsum divides; it does not with three terms or repeated labels."""
    terms, target = _equation(node)
    unclear = len(terms) > 2 or any(len(set(term)) != len(term) for term in terms.values())
    return WHOLE if unclear else _product_division(node, terms, target)


def _einsum_shape(node: Node, _: KnownShape) -> KnownShape:
    """Return the shape of an Einsum, where inference misses sizes of 1 that are broadcast."""
    terms, target = _equation(node)
    extents = _extents(node, terms)
    return tuple(extents[label] for label in target)


rule("Einsum", _einsum, _einsum_division, corrected=_einsum_shape)


def cell(
    node: Node,
    steps: int,
    batch: int,
    width: int,
    hidden: int,
    gates: int,
    directions: int = 1,
    *,
    elements: int = 0,
) -> Work:
    """Make the work of a recurrent cell with ``gates`` rows of weights, whose first operands are
    the input and both weights: the input product of all steps at once, the recurrent product step
    after step. ``elements`` are scalar operations besides those of the gates."""
    whole = LoopNest(gates, width, steps * batch, groups=directions)
    stepwise = LoopNest(gates, hidden, batch, groups=directions, repeats=steps)
    whole = replace(named(node, whole), output="")
    stepwise = replace(named(node, stepwise, 2), input="")
    elements += GATE_STEPS * directions * gates * steps * batch
    return product(whole, stepwise, elements=elements)


def _recurrent(node: Node, elements: int = 0) -> Work:
    """Return the work of RNN, GRU or LSTM, whose weights are (directions, gates * hidden, width);
    ``elements`` as for `cell`."""
    lead = ("batch", "steps") if node.attrs.get("layout", 0) else ("steps", "batch")
    gates = ("direction", "gates")
    size = _extents(node, {0: (*lead, "width"), 1: (*gates, "width"), 2: (*gates, "hidden")})
    numbers = (size[label] for label in ("steps", "batch", "width", "hidden", "gates", "direction"))
    return cell(node, *numbers, elements=elements)


def _dynamic_cell(node: Node) -> Work:
    """Return the work of an LSTM whose input and state are quantised at run time, at every step;
    its weights are (directions, width, gates * hidden)."""
    source, *weights = map(node.operand, range(3))
    shapes = [(one, gates, width) for one, width, gates in (value.shape for value in weights)]
    turned = map(lambda value, shape: replace(value, shape=shape), weights, shapes)
    steps, batch, _ = source.shape
    directions, _, hidden = shapes[1]
    quantised = source.count + directions * hidden * steps * batch
    return replace(_recurrent(replace(node, inputs=(source, *turned)), quantised), data=1)


rule("LSTM GRU RNN", _recurrent)
variant("DynamicQuantizeLSTM", like="LSTM", work=_dynamic_cell)


def _fold_to_plane(sizes: Sequence[int]) -> tuple[int, int]:
    """Fold any number of spatial dimensions to rows and columns: depth folds into the rows, one
    dimension is a single row."""
    return math.prod(sizes[:-1]), sizes[-1]


def _pair(node: Node, name: str) -> tuple[int, int]:
    """Return stride or dilation of the two innermost dimensions."""
    pair = (1, 1, *_numbers(node, name, 1, len(node.shape(0)) - 2))[-2:]
    return pair[0], pair[1]


def convolution_nest(node: Node, weight: int = 1, transposed: bool = False) -> LoopNest:
    """Make the loop nest of a convolution whose weight is laid out (K, C / groups, taps...).

    The weight of a transposed one is (C, K / groups, taps...), and each input pixel meets every tap
    once. In blocks of channels, the weight alone tells how many there are: the operand may be
    padded to whole blocks.
    """
    data, filters = node.shape(0), node.shape(weight)
    groups = node.attrs.get("group", 1)
    channels = filters[0] if transposed else filters[1] * groups
    fits = node.domain == NCHWC or data[1] == channels
    if groups < 1 or not fits or filters[0] % groups:
        raise ModelError(
            f"its input of {data[1]} channels, weights of shape {list(filters)} and {groups} groups"
            " do not fit together: the file is damaged, export it again"
        )
    far, near = filters[0] // groups, filters[1]
    positions = data if transposed else node.result.shape
    (y, x), (r, s) = _fold_to_plane(positions[2:]), _fold_to_plane(filters[2:])
    nest = LoopNest(
        k=near if transposed else far,
        c=far if transposed else near,
        y=y,
        x=x,
        r=r,
        s=s,
        groups=groups,
        batch=data[0],
        stride=(1, 1) if transposed else _pair(node, "strides"),
        dilation=_pair(node, "dilations"),
    )
    return named(node, nest, weight)


def _convolution(node: Node, weight: int = 1, transposed: bool = False) -> Work:
    """Return the work of a convolution."""
    return product(convolution_nest(node, weight, transposed))


def _numbers(node: Node, name: str, default: int, rank: int) -> list[int]:
    """Return an attribute with one number for each spatial dimension, which torch may give for
    several at once."""
    numbers = node.integers(name) or [default]
    return numbers * (rank // len(numbers))


def _spatial(node: Node, taps: Shape, transposed: bool = False) -> Windows:
    """Return the windows of the spatial dimensions; none if they are unknown.

    A range of the result of a transposed convolution needs the input positions from which some tap
    reaches it. ``small`` are the positions of the window, and ``large`` the elements that it passes
    over.
    """
    rank, result = len(taps), node.result.shape
    lead = len(result) - rank
    small, large = node.shape(0)[lead:], result[lead:]
    if not transposed:
        small, large = large, small
    strides = _numbers(node, "strides", 1, rank)
    dilations = _numbers(node, "dilations", 1, rank)
    extra = node.integers("output_padding") or [0] * rank
    if len(extra) != rank:
        raise ModelError(
            f"its output_padding {extra} is not of its {rank} dimensions: the file is damaged,"
            " export it again"
        )
    if not len(strides) == len(dilations) == rank:
        return ()
    reaches = [(tap - 1) * dilation for tap, dilation in zip(taps, dilations, strict=True)]
    mode, pads = node.attrs.get("auto_pad") or "NOTSET", list[int]()
    if mode in ("NOTSET", "VALID") and not node.integers("output_shape"):
        both = _numbers(node, "pads" if mode == "NOTSET" else "", 0, 2 * rank)
        pads = both[:rank]
        padded = list(map(sum, zip(large, pads, both[rank:], strict=False)))
        if node.kind.endswith("Conv") and any(map(operator.le, padded, reaches)):
            raise ModelError(
                f"its kernel {list(taps)} with dilations {dilations} is larger than its padded"
                f" input {padded}: use a larger input"
            )
    else:
        sizes = zip(small, large, strides, reaches, extra, strict=True)
        for axis, (count, size, stride, reach, more) in enumerate(sizes):
            total = (count - 1) * stride + reach + 1 + more - size
            pads.append(max(0, total // 2 if mode == "SAME_UPPER" else total - total // 2))
            # Where that is below 0, some runtimes skip up to half of it at the begin.
            reaches[axis] += max(0, -total // 2)
    if len(pads) != rank:
        return ()
    windows = []
    for axis, (stride, reach, pad) in enumerate(zip(strides, reaches, pads, strict=True), lead):
        if transposed:
            low = min(pad - reach + stride - 1, pad)
            windows.append(Window(axis, 1, stride, low, pad))
        else:
            windows.append(Window(axis, stride, 1, -pad, reach - pad))
    return tuple(windows)


def _convolution_division(
    node: Node,
    weight: int = 1,
    bias: int = 2,
    channels: Window = ALL,
    transposed: bool = False,
) -> Division:
    """Return how a convolution divides. ``channels`` is the window of the input channels of one
    that is not grouped.

    The loops of a transposed convolution run over input pixels. A row of the result needs the
    pixels whose taps reach it, and its share of the work is its share of the result.
    """
    filters, data, result = node.shape(weight), node.shape(0), node.result.shape
    groups, rank = node.attrs.get("group", 1), len(filters) - 2
    spatial = _spatial(node, filters[2:], transposed) if len(result) == rank + 2 else ()
    if not spatial:
        return WHOLE
    far, near = filters[0] // groups, filters[1]
    if transposed:
        far, near = near, far
    inputs, outputs = Window(1, 1, far, unit=near) if groups > 1 else channels, Window(1)
    own = (inputs, outputs) if transposed else (outputs, inputs)
    if groups > 1:
        own = (own[0], ALL)
    operands: dict[int, Windows] = {
        0: (Window(0), inputs, *spatial),
        weight: (*own, *(ALL for _ in spatial)),
    }
    if node.optional(bias):
        operands[bias] = (Window(1) if node.shape(bias) == result[1:2] else ALL,)
    # A piece has a row of input to itself at least.
    steps = {axis: -(-result[axis] // data[axis]) for axis in range(2, rank + 2) if transposed}
    rows = ("" if transposed and axis < rank else "y" for axis in range(2, rank + 1))
    return divided(operands, ("batch", "channels", *rows, "x"), steps=steps)


def _with_sum(node: Node) -> Division:
    """Return how a convolution with an added operand divides. Its reduction cannot be split,
    because an activation follows the sum."""
    return _with_added(_convolution_division(node), node, 3)


def _causal(node: Node) -> Work:
    """Return the work of a causal convolution: each channel by itself, over the current and earlier
    steps."""
    shape, (channels, *_, taps) = node.shape(0), node.shape(1)
    nest = LoopNest(
        k=1, c=1, x=math.prod(shape[1:]) // channels, s=taps, groups=channels, batch=shape[0]
    )
    return product(named(node, nest))


def _pool(node: Node) -> Work:
    """Return the work of a pool: one operation for each element of each window."""
    window = math.prod(node.integers("kernel_shape") or [1])
    return reduction(node.result.count * window)


def _pool_division(node: Node) -> Division:
    """Return how a pool divides: by windows in rows and columns."""
    spatial = _spatial(node, tuple(node.integers("kernel_shape") or ()))
    others = identity(node.rank - len(spatial))
    return divided({0: (*others, *spatial)}) if spatial else WHOLE


def _transposed_shape(node: Node, inferred: KnownShape) -> KnownShape:
    """Return the shape of a transposed convolution: inference knows no told size below the
    operand's, nor that of SAME with more added."""
    assert inferred
    sizes: Any = inferred[2:]
    if node.attrs.get("auto_pad", "")[:4] == "SAME":
        strides = _numbers(node, "strides", 1, len(sizes))
        sizes = map(min, sizes, map(operator.mul, node.shape(0)[2:], strides))
    return (*inferred[:2], *(node.integers("output_shape") or sizes))


rule("Conv", _convolution, partial(_convolution_division, channels=SUMMED))
# The zero point of weights may be one for each channel, as a bias is.
rule("ConvInteger", _convolution, partial(_convolution_division, bias=3))
rule(
    "QLinearConv", partial(_convolution, weight=3), partial(_convolution_division, weight=3, bias=8)
)
rule("DeformConv", _convolution)
rule(
    "ConvTranspose",
    partial(_convolution, transposed=True),
    partial(_convolution_division, transposed=True),
    corrected=_transposed_shape,
)
rule("CausalConvWithState", _causal)
rule("AveragePool MaxPool LpPool", _pool, _pool_division)

variant("NhwcConv NhwcFusedConv", like="Conv")
variant("NhwcMaxPool", like="MaxPool")
variant("QLinearAveragePool", like="AveragePool")
variant("FusedConv", like="Conv", division=_with_sum)
