"""The help of every command says what it is for, and shows one example that the command line accepts."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from prefixprop.cli.app import app

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str) -> None:
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).output
    assert re.search(rf"Usage: \S+ {command}", help_text) and not re.search(r"<(list|str|path)", help_text)
    (example,) = re.findall(r"Example: prefixprop (.*\S)", help_text)
    name, *arguments = shlex.split(example)
    # Parsing alone: options that do not exist, and arguments that are missing, raise.
    COMMANDS[name].make_context(name, arguments)
