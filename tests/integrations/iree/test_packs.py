"""Packing operations in IREE's text: read, refused and replaced; and the one release that is
known."""

import numpy as np
import pytest
from tests.support.tables import cases

from loadmaster.core.errors import AllocationError, MissingPackageError, ModelError, OutputError
from loadmaster.integrations.iree import export
from loadmaster.integrations.iree.export import PlannedPack, _with_addresses, export_program
from loadmaster.integrations.iree.packs import IreeSlice, find_packs

TEXT = """module {
  util.func private @one(%arg0: index) {
    %c100 = arith.constant 100 : index
    %c64 = arith.constant 64 : index
    %3:3 = stream.resource.pack on(#hal.device.affinity<@__device_0>) slices({
      [0, 2] = %c100,
      [3, 5] = %c64
    }) : index
    %4 = stream.resource.alloca => !stream.resource<transient>{%3#0}
    use %4[%3#1 for %c100], %4[%3#2 for %c64], %13#1, %3#12
    util.return
  }
  util.initializer {
    %c7 = arith.constant 7 : index
    %3:2 = stream.resource.pack slices({
      [1, 1] = %c7
    }) : index
    use %3#1 : !stream.resource<transient>{%3#0}
    util.return
  }
}"""
MODULE = TEXT.splitlines()


def test_operations_are_found_with_their_lifetimes_and_sizes():
    one, other = find_packs(MODULE, "text")
    assert (one.function, one.result, one.slices) == (
        "one",
        "%3",
        (IreeSlice(0, 2, 100), IreeSlice(3, 5, 64)),
    )
    assert (other.function, other.slices) == ("initializer", (IreeSlice(1, 1, 7),))
    assert MODULE[one.end].strip().startswith("%4 =")


def test_results_become_constants_in_their_own_function_only():
    plans = [
        PlannedPack("one", 2, 192, 128, 128, "optimal"),
        PlannedPack("initializer", 1, 64, 64, 64, "optimal"),
    ]
    text = list(_with_addresses(MODULE, [(plans[0], np.array([0, 64])), (plans[1], np.array([0]))]))
    assert not [line for line in text if "stream.resource.pack" in line]
    assert (
        "    use %4[%packed_0_1 for %c100], %4[%packed_0_2 for %c64], %13#1, %packed_0_12" in text
    )
    assert "    use %packed_1_1 : !stream.resource<transient>{%packed_1_0}" in text
    assert "    %packed_0_2 = arith.constant 64 : index" in text
    assert len(text) == len(MODULE) - 4 + 3 - 3 + 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    cases("""
        [3, 5] = %c64 | [3, 5] = %7 | text:7: the size %7 in one is not known .* only static shapes
        %c7 = arith.constant 7 | %c7 = arith.muli %n | text:16: the size %c7 in initializer
        %3:3 | %3:9 | text:5: has 2 slices for 9 results
        [3, 5] | [5, 3] | text:7: a slice of 64 bytes from 5 to 3
        pack on | pack offset(%o) on | text:5: .* form that is not known
        [3, 5] | (3, 5) | text:5: .* has no end
        constant 100 | constant 9223372036854775807 | text:6: a slice of 9223372036854775807
    """),
)
def test_what_cannot_be_packed_is_refused_by_line(old, new, words):
    with pytest.raises(AllocationError, match=words):
        find_packs(TEXT.replace(old, new).splitlines(), "text")


@pytest.mark.parametrize("found", ["3.12.0", "4.0.0", "3.130.0"])
def test_another_release_is_refused_with_what_to_do(found, monkeypatch):
    monkeypatch.setattr(export, "version", lambda package: found)
    with pytest.raises(
        MissingPackageError,
        match=(
            rf"{found} is installed: pip install 'loadmaster\[iree\]' \(iree-base-compiler 3.13\)"
        ),
    ):
        export.require_version()


def test_without_the_compiler_it_is_said_what_to_install(monkeypatch):
    def absent(package):
        raise export.PackageNotFoundError(package)

    monkeypatch.setattr(export, "version", absent)
    with pytest.raises(
        MissingPackageError, match=r"not installed: pip install 'loadmaster\[iree\]'"
    ):
        export.require_version()


def test_files_and_flags_that_cannot_be_are_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "version", lambda package: "3.13.0")
    model = tmp_path / "m.mlir"
    with pytest.raises(ModelError, match=r"m\.mlir: is no \.mlir or \.onnx file"):
        export_program(model, tmp_path / "o.vmfb")
    model.write_text("module {}")
    with pytest.raises(ModelError, match=r"--compile-to=flow: leave it out"):
        export_program(model, tmp_path / "o.vmfb", ["--compile-to=flow"])
    with pytest.raises(OutputError, match="a directory is in the way"):
        export_program(model, tmp_path)
    with pytest.raises(OutputError, match="weights are called so"):
        export_program(model, tmp_path / "o.irpa")
    assert [path.name for path in tmp_path.iterdir()] == ["m.mlir"]
