"""Commands as a user calls them."""

from __future__ import annotations

import time
from collections.abc import Callable

from typer.testing import CliRunner

from prefixprop.cli.app import app


def call(*arguments: object, status: int = 0, stdin: bytes | None = None, columns: int = 200) -> tuple[str, str]:
    """Standard output and standard error of `prefixprop`, which ends with this status and without a traceback."""
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    result = runner.invoke(app, list(map(str, arguments)), input=stdin)
    assert result.exit_code == status, result.output
    assert status == 0 or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
