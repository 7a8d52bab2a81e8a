"""Reads ONNX files: from bytes on disk to a network, with one-line errors that begin with the
file's name."""

from __future__ import annotations

import graphlib
import gzip
import math
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

import onnx
from onnx import inliner
from onnx.external_data_helper import load_external_data_for_tensor

from loadmaster.core.arguments import instead
from loadmaster.core.errors import ModelError
from loadmaster.core.files import is_special, why_unreadable
from loadmaster.workloads.frontends.frontend import LoadOptions, labelled
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, walk_network
from loadmaster.workloads.frontends.onnx.order import nested_nodes, subgraphs
from loadmaster.workloads.frontends.onnx.rules import dtype_name, require_precision, storage_bytes
from loadmaster.workloads.frontends.onnx.walk import LARGEST_FOLD, WalkedNetwork
from loadmaster.workloads.graph import Graph

LARGEST_EXPANSION = 1_000_000
"""The most nodes after inlining; functions that call functions can describe exponentially many."""

Key = tuple[str, str]


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the model's local functions; those of another opset than the model's stay calls.

    Raises
    ------
    ModelError
        Functions call each other in a circle, or their expansion is too large.
    """
    if not model.functions:
        return model
    calls = {(each.domain, each.name): _calls(each.node) for each in model.functions}
    total = _expanded_size(calls, _calls(model.graph.node))
    if total > LARGEST_EXPANSION:
        raise ModelError(
            f"its functions expand to {total} operators, more than {LARGEST_EXPANSION}: inline or"
            " simplify them first"
        )
    return inliner.inline_local_functions(model)


def _calls(nodes: Iterable[onnx.NodeProto]) -> list[Key]:
    """Return domain and kind of all nodes, those of subgraphs too."""
    return [(node.domain, node.op_type) for node in nested_nodes(nodes)]


def _expanded_size(calls: dict[Key, list[Key]], top: list[Key]) -> int:
    """Return the number of nodes after inlining all functions."""
    needed = {key: set(inner) & calls.keys() for key, inner in calls.items()}
    sizes: dict[Key, int] = {}
    try:
        for key in graphlib.TopologicalSorter(needed).static_order():
            sizes[key] = sum(sizes.get(inner, 1) for inner in calls[key])
    except graphlib.CycleError as error:
        name = error.args[1][0][1]
        raise ModelError(
            f"function {name!r} calls itself: a network must be acyclic, export it again"
        ) from None
    return sum(sizes.get(key, 1) for key in top)


_FIRST_BYTES, _LARGEST_RATIO = 2**28, 512
"""The first so many bytes of a gzipped file must not be so many times as large as what they came
from: what weights are made of does not shrink as much."""
LARGEST_FILE = 2**31
"""The most bytes after decompression: protobuf cannot hold more, and it limits decompression
bombs."""

_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_EXAMPLE = "give the path of an .onnx, .onnx.gz or .tflite file, or onnx:NAME"


def load_onnx(source: str, options: LoadOptions) -> Graph:
    """Read a network from an ONNX file; errors as in
    :func:`loadmaster.workloads.frontends.load.load`."""
    network, _ = walk_onnx(source, options)
    with labelled(source):
        return graph_of(network, options.name or network_name(source), source)


def load_model(source: onnx.ModelProto, options: LoadOptions) -> Graph:
    """Read a network from a model in memory, which stays as it is; errors as in
    :func:`load_onnx`."""
    label = f"model {source.graph.name}"
    with labelled(label):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        network = _walk_model(model, options)[0]
        return graph_of(network, options.name or source.graph.name or "network", label)


def walk_onnx(source: str, options: LoadOptions) -> tuple[WalkedNetwork, onnx.ModelProto]:
    """Read an ONNX file, node by node, for those who need what the nodes hold, too; errors as in
    :func:`load_onnx`.

    Returns the network and the model, in which functions are inlined.
    """
    with labelled(source):
        model = parse_model(read_bytes(source))
        _load_small_tensors(model, Path(source).parent)
        return _walk_model(model, options)


def _load_small_tensors(model: onnx.ModelProto, folder: Path) -> None:
    """Load the small constants, such as shapes, that are kept in files beside the model; those that
    cannot be read stay unknown."""
    nodes = [*nested_nodes(model.graph.node)]
    graphs = [model.graph, *(graph for node in nodes for graph in subgraphs(node))]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    tensors += [each.t for node in nodes for each in node.attribute if each.HasField("t")]
    for tensor in tensors:
        if tensor.data_location != tensor.EXTERNAL:
            continue
        with suppress(Exception):
            stated = [each for each in tensor.external_data if each.key == "length"]
            if not stated:
                whole = storage_bytes(math.prod(tensor.dims), dtype_name(tensor.data_type, ""))
                stated = [tensor.external_data.add(key="length", value=str(whole))]
            if 0 < int(stated[0].value) <= 8 * LARGEST_FOLD:
                load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = tensor.DEFAULT


def _walk_model(
    given: onnx.ModelProto, options: LoadOptions
) -> tuple[WalkedNetwork, onnx.ModelProto]:
    """Return a network's steps, and the model with its functions inlined."""
    if options.training:
        raise ModelError(
            "an ONNX model holds no training step: give torch:module.path:factory, or a module and"
            " its inputs"
        )
    require_precision(options.precision)
    model = inline_functions(given)
    return walk_network(model, options), model


def network_name(source: str) -> str:
    """Return the file's name without folder and suffixes."""
    if source.startswith("onnx:"):
        return source.removeprefix("onnx:")
    stem = Path(source).name.removesuffix(".gz").removesuffix(".onnx")
    return " ".join(stem.split()) or "network"


def read_bytes(source: str) -> bytes:
    """Read the contents of the file, decompressed if it is gzipped."""
    path = light_path(source.removeprefix("onnx:")) if source.startswith("onnx:") else Path(source)
    if is_special(path):
        raise ModelError(f"is not a file: {_EXAMPLE}")
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (_unzip(file) if zipped else file).read(LARGEST_FILE)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ModelError(
            f"is not a complete gzip file ({error}): copy or compress it again"
        ) from None
    except OSError as error:
        raise ModelError(f"cannot be read ({why_unreadable(path, error)}): {_EXAMPLE}") from None
    if len(data) == LARGEST_FILE:
        raise ModelError(
            "is larger than 2 GiB, which ONNX cannot hold in one file: save it with external data"
        )
    return data


def _unzip(file: BinaryIO) -> BinaryIO:
    """Return the contents of a gzipped file; raise ModelError early if they are far larger than the
    file."""
    content = gzip.GzipFile(fileobj=file)
    begin = len(content.read(_FIRST_BYTES))
    if begin == _FIRST_BYTES > _LARGEST_RATIO * file.tell():
        raise ModelError(
            f"unpacks to more than {_LARGEST_RATIO} times its size: if it is a network, unpack it"
            " first"
        )
    content.seek(0)
    return cast(BinaryIO, content)


def light_names() -> list[str]:
    """Return the names of the networks that the installed onnx package ships."""
    return sorted(path.stem.removeprefix("light_") for path in _LIGHT.glob("light_*.onnx"))


def light_path(name: str) -> Path:
    """Return the path of a network that the onnx package ships."""
    if name not in light_names():
        raise ModelError(
            f"the onnx package ships no network {name!r}: {instead(name, light_names())}"
        )
    return _LIGHT / f"light_{name}.onnx"


def parse_model(data: bytes) -> onnx.ModelProto:
    """Parse the model in a file's bytes."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        raise ModelError(
            "is not an ONNX file, or is cut off or damaged: export it to ONNX, or copy it again"
            " (lists of jobs are for loadmaster map, and end in .csv)"
        ) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            "holds no network: give a file that torch.onnx.export or another ONNX exporter wrote"
        )
    _require_text(model.graph)
    for function in model.functions:
        _require_text(function)
    return model


def _require_text(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Raise `ModelError` if a name in a graph or in those of its operators is not UTF-8, which
    protobuf reads as bytes."""
    names = [graph.name]
    if isinstance(graph, onnx.GraphProto):
        named = (graph.input, graph.output, graph.value_info, graph.initializer)
        names += [each.name for values in named for each in values]
    for node in graph.node:
        names += (node.name, node.op_type, node.domain, *node.input, *node.output)
        names += [attribute.name for attribute in node.attribute]
        for inner in subgraphs(node):
            _require_text(inner)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(
                f"the name {name!r} is not text in UTF-8: the file is damaged, export it again"
            )
