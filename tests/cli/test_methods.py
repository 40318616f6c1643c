"""`prefixprop methods`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app

KERNEL = '''
from dataclasses import dataclass
from prefixprop.kernels import Kernel, register_kernel

@register_kernel("overlap")
@dataclass(frozen=True)
class Overlap(Kernel):
    """Relu of the product."""

    def similarity(self, query, key):
        return (query @ key.transpose(-1, -2)).relu()
'''


def test_lists_methods_options_kernels_and_models() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["methods"])
    assert result.exit_code == 0, result.output
    for word in ("PrefixPropagationConfig", "PREFIX_PROPAGATION", "PrefixTuningConfig", "num_virtual_tokens"):
        assert word in result.stdout
    for word in ("exp", "kernel_length_scale", "kernel_degree", "linear", "longformer", "xlm-roberta"):
        assert word in result.stdout
    assert "token_dim" not in result.stdout  # what peft and we record is no option
    assert "overlap" not in result.stdout  # see below


def test_a_kernel_of_ones_own_is_picked_up(tmp_path: Path) -> None:
    (tmp_path / "my_kernels.py").write_text(KERNEL)
    command = [sys.executable, "-m", "prefixprop", "--import", "my_kernels", "methods"]
    environment = {"COLUMNS": "160", "PATH": "", "HOME": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "overlap" in result.stdout and "Relu of the product." in result.stdout


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
