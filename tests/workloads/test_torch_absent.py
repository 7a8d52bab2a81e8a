"""Without torch, networks of torch are refused with what to install."""

import sys

import pytest

import loadmaster as lm
from loadmaster.core.errors import ModelError


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"install it with pip install 'loadmaster\[torch\]'"):
        lm.load("torch:any:thing")
