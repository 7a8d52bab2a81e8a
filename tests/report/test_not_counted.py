"""Operators whose arithmetic is not known are named in the first line of every summary."""

import pytest
from tests.support.command_line import ran, unwrapped
from tests.support.efforts import verified
from tests.support.onnx_builder import info, model, save

import loadmaster as lm

pytestmark = pytest.mark.slow


@pytest.fixture
def network(tmp_path):
    """A network with two operators of a domain that nobody knows."""
    nodes = "y = acme.Mystery(x); z = acme.Mystery(y)"
    proto = model(nodes, "float[1,64] x", "z", value_info="float[1,64] y")
    proto.graph.output[0].CopyFrom(info("z", (1, 64)))
    return save(tmp_path, proto, "strange.onnx")


@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize(
    "options", ["inspect", "plan --target edge-npu", "place --target optane-server"]
)
def test_the_first_line_names_what_is_not_counted(options, network):
    done = ran(options, network, cwd=network.parent)
    assert done.stdout.lstrip().startswith("NOT COUNTED: arithmetic of")
    assert "Mystery x2" in unwrapped(done)[:120]
    assert done.stdout.count("Mystery x2") == 1


def test_views_and_pages_begin_with_it(network, tmp_path):
    graph = lm.load(network)
    plan = verified([graph], lm.target("edge-npu"))
    for answer in (graph, plan):
        assert "NOT COUNTED" in str(answer).splitlines()[0]
    plan.report(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "NOT COUNTED: arithmetic of" in page
    assert "Mystery" not in str(plan.notes)


@pytest.mark.usefixtures("little_effort")
def test_what_is_understood_has_no_such_line(tmp_path):
    done = ran("plan onnx:squeezenet --target edge-npu --cut none", cwd=tmp_path)
    assert "NOT COUNTED" not in done.stdout
