"""What commands print."""

from __future__ import annotations

import pytest
import typer

from prefixprop.cli.messages import clean_errors, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("naïve 文書 😀 \u200c [bold]", "naïve 文書 😀 \u200c [bold]"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\tb\r\nc\x7f", r"a\tb\r\nc\x7f"),
        ("\x9b31m \x85", r"\x9b31m \x85"),
        ("half \ud83d", r"half \ud83d"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("the label '\x1b[2J[bold]' is unknown"), "Error: the label '\\x1b[2J[bold]' is unknown\n"),
        (OSError(2, "No such file", "a\x07b"), "Error: a\\x07b: No such file\n"),
        (RuntimeError("one\ntwo"), "Error: one\nError: two\n"),
        (KeyboardInterrupt(), "Stopped.\n"),
    ],
)
def test_errors(error: BaseException, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), clean_errors():
        raise error
    assert capsys.readouterr().err == expected
