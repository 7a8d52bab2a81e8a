"""Without torch, networks of torch are refused with what to install."""

import sys

import pytest

import loadmaster as lm


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(lm.ModelError, match=r"install it with pip install 'loadmaster\[torch\]'"):
        lm.load("torch:any:thing")
