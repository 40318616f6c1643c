"""`prefixprop methods`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line import call


def test_lists_methods_options_kernels_and_models() -> None:
    shown = call("methods")[0]
    for word in ("PrefixPropagationConfig", "PREFIX_PROPAGATION", "PrefixTuningConfig", "num_virtual_tokens"):
        assert word in shown
    for word in ("exp", "kernel_length_scale", "kernel_degree", "linear", "longformer", "xlm-roberta"):
        assert word in shown
    assert "token_dim" not in shown  # what peft and we record is no option


@pytest.mark.parametrize(("content", "cause"), [(None, "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError")])
def test_modules_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if content is not None:
        Path("broken_module.py").write_text(content)
    told = call("--import", "broken_module", "methods", status=2)[1]
    assert "cannot be imported" in told and cause in told
