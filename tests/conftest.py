"""For all tests: no cache of the user's, no limits of time, and in CI no skip but those that a
machine without a GPU may have."""

import gc
import os
import re
import signal
from types import SimpleNamespace

import pytest
from hypothesis import settings
from tests.support.fuzzing import fuzz
from tests.support.needs import MAY_BE_MISSING

from loadmaster.core.effort import Effort

settings.register_profile("loadmaster", fuzz())
settings.load_profile("loadmaster")
os.environ["LOADMASTER_CACHE"] = ""
# Two workers with two threads of torch each take longer on two processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background, or by nohup, tests inherit that these are ignored, and what they start
# would never be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

REQUIRED = os.environ.get("LOADMASTER_REQUIRE") == "1"
"""Skips fail: set where everything that tests need has been installed, as in CI."""
ABSENT = os.environ.get("LOADMASTER_ABSENT", "").split()
"""Packages that cannot be had on this machine: their tests may be skipped even so."""


NIGHTLY = os.environ.get("LOADMASTER_NIGHTLY") == "1"
"""Only what `.ci/nightly` runs, and nothing else does."""


def pytest_collection_modifyitems(config, items):
    kept = {True: [], False: []}
    for item in items:
        kept[(item.get_closest_marker("nightly") is not None) == NIGHTLY].append(item)
    items[:] = kept[True]
    config.hook.pytest_deselected(items=kept[False])


def pytest_collection_finish():
    """What is there by now stays, and no collection of garbage looks through it."""
    gc.collect()
    gc.freeze()


def may_be_skipped(reason):
    return any(known in reason for known in MAY_BE_MISSING) or any(
        re.search(rf"\b{re.escape(name)}\b", reason) for name in ABSENT
    )


def without_skip(report):
    """The report of a test or of a module, as a failure if it was skipped for want of something
    that must be there."""
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        path, line, reason = report.longrepr
        if not may_be_skipped(reason):
            report.outcome = "failed"
            report.longrepr = (
                f"{path}:{line}: {reason}: with LOADMASTER_REQUIRE=1 nothing that can be installed"
                " may be missing"
            )
    return report


@pytest.fixture(scope="module")
def little_effort():
    """Whatever effort is asked for in this process is that of tests: for what calls the program as
    a user does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Effort, "of", staticmethod(lambda *_: Effort.TEST))
        patch.setattr(Effort, "QUICK", Effort.TEST)
        yield


@pytest.fixture(scope="module")
def forked_interpreter():
    """TFLM's interpreter runs in forks of this process."""
    from tests.support.tflm import forked

    from loadmaster.integrations.tflite import interpreter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "subprocess", SimpleNamespace(run=forked))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return without_skip((yield))
