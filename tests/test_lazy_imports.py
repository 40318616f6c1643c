"""What starts at once: the import, help and mistakes load no PyTorch, and Ctrl-C during an import is no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prefixprop.lazy_imports import import_optional

HEAVY = ("torch", "transformers", "peft")

# Prints which of the heavy packages a program has imported when it ends, whatever it ends with.
WATCHED = """
import atexit, json, sys
atexit.register(lambda: print("HEAVY", json.dumps([name for name in {heavy!r} if name in sys.modules])))
{program}
"""
COMMAND = "import sys; sys.argv[1:] = {arguments!r}; from prefixprop.cli import main; main()"


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)


def imported(program: str, folder: Path) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    ended = python(WATCHED.format(heavy=HEAVY, program=program), folder)
    return json.loads(ended.stdout.rpartition("HEAVY ")[2]), ended


def test_import_is_light(tmp_path: Path) -> None:
    heavy, ended = imported("import prefixprop; dir(prefixprop); prefixprop.__version__", tmp_path)
    assert heavy == [] and ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["predict", "--help"], 0, "--batch-tokens"),
        (["explain", "no-such-run", "no-such-file", "--html", "page.html"], 1, "no-such-run"),
        (["tasks"], 0, "hyperpartisan"),
        (["train", "--task", "no-such-task"], 1, "'no-such-task' is unknown"),
        (["predict", "no-such-run", "no-such-file"], 1, "no-such-run"),
        (["report", "no-such-folder"], 1, "no-such-folder"),
        (["sweep", "no-such-plan.yaml"], 1, "no-such-plan.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_and_mistakes_load_no_pytorch(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    heavy, ended = imported(COMMAND.format(arguments=arguments), tmp_path)
    assert ended.returncode == status, ended.stderr
    assert words in ended.stdout + ended.stderr and "Traceback" not in ended.stderr
    assert heavy == []


def test_peft_knows_the_methods_also_if_it_is_imported_later(tmp_path: Path) -> None:
    program = "import prefixprop, peft\nfrom peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING as tuners\n" + (
        "print(tuners['PREFIX_PROPAGATION'].__name__, tuners['LONG_PREFIX_TUNING'].__name__)"
    )
    ended = python(program, tmp_path)
    assert ended.stdout.split() == ["PrefixPropagationModel", "PrefixTuningModel"], ended.stderr


@pytest.mark.parametrize("module", ["typer", "torch"])  # of the command line itself, and of what computes
def test_ctrl_c_while_python_imports_is_no_traceback(tmp_path: Path, module: str) -> None:
    interrupting = f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
"""
    ended = python(interrupting + COMMAND.format(arguments=["methods"]), tmp_path)
    assert ended.returncode == 130
    assert ended.stderr.strip() in ("Stopped.", "")


def test_a_missing_package_is_named_with_its_purpose_and_remedy() -> None:
    assert import_optional("json", "JSON files") is json
    with pytest.raises(ImportError, match=r"Odd files need the package no_such_package: pip install no_such_package"):
        import_optional("no_such_package.reader", "Odd files")
    with pytest.raises(ImportError, match=r"need the package no_such_package: pip install 'prefixprop\[odd\]'"):
        import_optional("no_such_package", "Odd files", extra="odd")
