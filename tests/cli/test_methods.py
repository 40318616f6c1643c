"""`prefixprop methods`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app


def test_lists_methods_options_kernels_and_models() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["methods"])
    assert result.exit_code == 0, result.output
    for word in ("PrefixPropagationConfig", "PREFIX_PROPAGATION", "PrefixTuningConfig", "num_virtual_tokens"):
        assert word in result.stdout
    for word in ("exp", "kernel_length_scale", "kernel_degree", "linear", "longformer", "xlm-roberta"):
        assert word in result.stdout
    assert "token_dim" not in result.stdout  # what peft and we record is no option


@pytest.mark.parametrize(("content", "cause"), [(None, "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError")])
def test_modules_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if content is not None:
        Path("broken_module.py").write_text(content)
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["--import", "broken_module", "methods"])
    assert result.exit_code == 2
    assert "cannot be imported" in result.stderr and cause in result.stderr
    assert "Traceback" not in result.stderr
