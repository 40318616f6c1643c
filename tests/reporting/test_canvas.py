from __future__ import annotations

import sys

import pytest

from prefixprop.reporting.canvas import new_figure


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'prefixprop\[plots\]'"):
        new_figure(4, 3)
