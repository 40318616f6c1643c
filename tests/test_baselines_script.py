"""benchmarks/baselines.py: which documents it judges on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tiny_training import write_documents

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import baselines  # noqa: E402


@pytest.mark.parametrize(
    ("task", "options", "judged"),
    [
        ("arxiv", [], "4 test documents"),
        ("arxiv", ["--split", "dev"], "6 dev documents"),
        ("elife", [], "6 dev documents"),
        ("elife", ["--folds", "2", "--characters", "100"], "means of 2 folds of train"),
    ],
)
def test_what_is_judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    task: str,
    options: list[str],
    judged: str,
) -> None:
    for seed, (split, count) in enumerate({"train": 20, "dev": 6, "test": 4}.items()):
        write_documents(tmp_path / f"{split}.jsonl", count, seed)
    recipe = ROOT / "recipes" / f"{task}-fine-tuning.yaml"
    monkeypatch.setattr(sys, "argv", ["baselines.py", str(recipe), "--data-dir", str(tmp_path), *options])
    baselines.main()
    shown = capsys.readouterr().out
    assert f"{task}, {judged}" in shown and "TF-IDF" in shown


def test_a_missing_folder_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["baselines.py", str(ROOT / "recipes" / "elife-fine-tuning.yaml")])
    with pytest.raises(SystemExit):
        baselines.main()
    assert "error: The articles of eLife have to be built: pass --data-dir FOLDER" in capsys.readouterr().err
