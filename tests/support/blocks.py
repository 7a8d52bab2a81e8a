"""One operator in blocks, on tensors that rest in a file."""

from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.blocks import BlockCall, stream_storages
from loadmaster.integrations.torch_compile.captured import View, capture, is_view, on_storage
from loadmaster.integrations.torch_compile.cpu_memory import SlowFile, pages
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor
from loadmaster.placement.sequence import CopyLink

LINK = CopyLink(1e9, 1e9, 1e9, 1e9)


class OnDisk:
    """Storages of a captured graph, all of them in a file."""

    def __init__(self, captured, folder):
        self.file = SlowFile(folder)
        self.starts = {
            s: self.file.reserve(pages(max(storage.bytes, 1)))
            for s, storage in enumerate(captured.storages)
        }

    def tensor(self, view):
        return SlowTensor(view, self.file, self.starts[view.storage])


def in_blocks(function, inputs, room, folder, keep=()):
    """Run a function of one operator on tensors in a file, but for those of its operands in
    ``keep``; its results, and the target."""
    captured = capture([make_fx(function)(*inputs)], inputs)
    disk, given_views = OnDisk(captured, folder), captured.parts[0].given
    memory = {
        view.storage: tensor.untyped_storage()
        for view, tensor in zip(given_views, inputs, strict=True)
    }
    away = {view.storage for i, view in enumerate(given_views) if i not in keep}
    made = {s for call in captured.calls for s in call.writes if captured.storages[s].bytes > 64}
    cut = stream_storages(captured, frozenset(away), away | made, room, LINK)
    (call,) = cut.calls
    assert isinstance(call.target, BlockCall), call.kind
    for view, tensor in zip(given_views, inputs, strict=True):
        if view.storage in cut.streamed:
            disk.tensor(view).write(tensor)

    def real(leaf):
        if not isinstance(leaf, View):
            return leaf
        return (
            disk.tensor(leaf)
            if leaf.storage in cut.streamed
            else on_storage(memory[leaf.storage], leaf)
        )

    (slow, *arguments), keywords = tree_map(real, (call.arguments, call.keywords), is_leaf=is_view)
    out = call.target(slow, *arguments, **keywords)
    return [
        there.read() if there is not None else value for there, value in zip(slow, out, strict=True)
    ], call.target


def whole(function, inputs):
    out = function(*inputs)
    return list(out) if isinstance(out, tuple) else [out]
