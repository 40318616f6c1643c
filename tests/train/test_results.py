"""What a run leaves: its weights or none, its model card, its baseline, its environment, and what trackers get."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from transformers import AutoTokenizer
from transformers.integrations import integration_utils

from prefixprop import load_run
from prefixprop.data import ClassificationTask
from prefixprop.evaluate import measure_baseline, read_predictions
from prefixprop.train import RunDirectory, RunSettings, SettingsError, plan, train
from prefixprop.train.run import describe_environment

from tiny_training import LABELS, Notes, comparable, load_run_task, rewrite, tiny_settings, write_documents

# --- weights --------------------------------------------------------------------------------------------------------


KEPT = {
    "config.yaml", "labels.json", "environment.json", "lengths.json", "history.jsonl", "predictions",
    ".prefixprop-lock", "manifest.json", "metrics.json", "README.md",
}  # fmt: skip


def names(run_dir: Path) -> set[str]:
    return {path.name for path in run_dir.iterdir()}


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSettings, Path]:
    """A run that kept no weights, and its settings."""
    folder = tmp_path_factory.mktemp("lean")
    settings = tiny_settings(folder, method="prefix-propagation+lora", epochs=1, keep_weights=False)
    return settings, train(settings, folder / "run").run_dir


def test_the_results_are_those_of_a_run_with_weights(tmp_path: Path, lean: tuple[RunSettings, Path]) -> None:
    settings, run_dir = lean
    kept = train(replace(settings, keep_weights=True), tmp_path / "run").metrics
    assert comparable(kept) == comparable(RunDirectory(run_dir).read_metrics())
    assert names(tmp_path / "run") == KEPT | {"adapter", "tokenizer"} and names(run_dir) == KEPT


def test_its_card_has_no_code_and_it_cannot_predict(lean: tuple[RunSettings, Path]) -> None:
    _, run_dir = lean
    card = (run_dir / "README.md").read_text(encoding="utf-8")
    assert "did not keep its weights" in card and "--keep-weights" in card
    assert "```" not in card and "prefixprop predict" not in card and "| accuracy |" in card
    with pytest.raises(ValueError, match=r"run: this run did not keep its weights; .* --keep-weights"):
        load_run(run_dir)


def test_a_finished_one_says_that_its_weights_are_gone(lean: tuple[RunSettings, Path]) -> None:
    settings, run_dir = lean
    told: list[str] = []
    again = train(replace(settings, keep_weights=True), run_dir, resume=True, progress=Notes(told))
    assert again.metrics == RunDirectory(run_dir).read_metrics() and names(run_dir) == KEPT
    assert len(told) == 1 and "finished run without its weights; --overwrite" in told[0]


# --- the model card -------------------------------------------------------------------------------------------------


CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("fine-tuning", "roberta-mini-512", {}),
        ("prefix-propagation", "longformer-mini-4096", {"kernel": "exp", "alpha_mode": "head", "pooling": "prefix"}),
    ],
)
def test_the_code_loads_the_model(
    tmp_path: Path, method: str, model: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {split: write_documents(tmp_path / f"{split}.jsonl", 4, 1) for split in ("train", "dev")}
    files = {f"{split}_files": (str(path),) for split, path in paths.items()}
    settings = RunSettings(model=model, method=method, max_length=40, epochs=1, **files, **changes)
    train(settings, tmp_path / "run", progress=Notes())
    stored = read_predictions(tmp_path / "run" / "predictions" / "dev.jsonl")
    monkeypatch.chdir(tmp_path / "run")
    names: dict[str, Any] = {}
    card = Path("README.md").read_text(encoding="utf-8")
    assert ("virtual tokens" in card) == settings.is_prefix_method
    codes = CODE.findall(card)
    assert len(codes) == (1 if method == "fine-tuning" else 2)
    for code in codes:
        exec(compile(code, "README.md", "exec"), names)
    texts = [json.loads(line)["text"] for line in paths["dev"].read_text().splitlines()]
    assert [answer.label for answer in names["run"].predict(texts)] == [
        sorted(LABELS)[row] for row in stored.logits.argmax(axis=1)
    ]
    if "model" not in names:
        return
    assert not names["model"].training and names["model"].config.id2label == dict(enumerate(sorted(LABELS)))
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    for row, text in enumerate(texts):
        inputs = tokenizer(text, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            assert names["model"](**inputs).logits[0].tolist() == pytest.approx(stored.logits[row].tolist(), abs=1e-3)
    monkeypatch.chdir("adapter")  # which may be published alone
    (code,) = CODE.findall(Path("README.md").read_text(encoding="utf-8"))
    exec(compile(code, "README.md", "exec"), alone := {})
    assert alone["model"].config.id2label == names["model"].config.id2label


# --- the baseline ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 8},  # the baseline reads whole documents
        {"max_train_documents": 12, "max_dev_documents": 6},
        {"folds": 3, "fold": 1},
    ],
    ids=str,
)
def test_the_baseline_is_that_of_the_documents_of_the_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = tiny_settings(tmp_path, epochs=1, **changes)
    metrics = train(settings, tmp_path / "run", progress=Notes()).metrics
    task = load_run_task(settings)
    assert isinstance(task, ClassificationTask) and metrics["baseline"] == measure_baseline(task)
    measured = {name for name in metrics["baseline"] if name != "model"}
    assert measured == {name for name in ("dev", "test") if name in metrics}
    for split in measured:
        assert metrics["baseline"][split]["documents"] == metrics[split]["documents"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        f"linear SVM, fitted on the same documents, has micro_f1 {metrics['baseline']['dev']['micro_f1']:.4f}" in card
    )


def test_documents_without_words_have_no_baseline(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1)
    rewrite(settings.train_files[0], lambda number, row: row | {"text": "?"})
    notes: list[str] = []
    metrics = train(settings, tmp_path / "run", progress=Notes(notes)).metrics
    assert "baseline" not in metrics and metrics["status"] == "finished"
    assert any(note.startswith("there is no baseline") for note in notes)


# --- the environment ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, whatever repository is above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("PREFIXPROP_COMMIT", raising=False)
    return tmp_path


def recorded() -> Any:
    return describe_environment(1, torch.device("cpu"), 1)["git"]


def git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_and_what_differs_from_it(folder: Path) -> None:
    git("init", "--quiet")
    (folder / "code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert recorded() == {"commit": commit, "changed": False}
    names = []
    for content in (b"2\n", b"in Latin-1: \xe9\n", b"2\n"):
        (folder / "code.py").write_bytes(content)
        found = recorded()
        assert (found["commit"], found["changed"]) == (commit, True)
        names.append(found["difference"])
    assert names[0] == names[2] != names[1], "the same changes have the same name"


def test_without_a_repository_a_variable_or_a_file_has_the_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorded() is None
    (folder / "COMMIT").write_text("abc123\n")
    assert recorded() == {"commit": "abc123", "changed": None}
    monkeypatch.setenv("PREFIXPROP_COMMIT", "def456")
    assert recorded() == {"commit": "def456", "changed": None}


# --- trackers -------------------------------------------------------------------------------------------------------


def test_the_tracker_gets_every_epoch_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MagicMock()

    def summary_writer(log_dir: str) -> MagicMock:
        """As TensorBoard's, it makes its folder."""
        Path(log_dir).mkdir(parents=True)
        return writer

    tensorboard = SimpleNamespace(SummaryWriter=summary_writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    settings = tiny_settings(tmp_path, epochs=2, kernel="exp", alpha_mode="layer", keep="last")
    run = train(settings, tmp_path / "silent")
    assert not (run.run_dir / "runs").exists() and not writer.add_scalar.called, "without --report-to"

    run = train(replace(settings, report_to=("tensorboard",)), tmp_path / "run")
    assert len(list((run.run_dir / "runs").iterdir())) == 1 and not (run.run_dir / "checkpoints").exists()
    assert writer.close.called
    found = {(step, name): value for name, value, step in (call.args for call in writer.add_scalar.call_args_list)}
    told = ("train/loss", "train/learning_rate", "train/alpha/layer_1", "eval/micro_f1", "eval/ece", "eval/nll")
    assert {(step, name) for step in (3, 6) for name in told} <= found.keys()
    for metric, value in run.metrics["dev"].items():
        assert found[6, f"eval/{metric}"] == pytest.approx(value, abs=1e-6)


def test_trackers_that_are_not_installed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    with pytest.raises(SettingsError) as raised:
        plan(tiny_settings(tmp_path, report_to=("tensorboard", "nobody")))
    assert [problem.partition("; installed: ")[0] for problem in raised.value.problems] == [
        "--report-to: 'tensorboard' is unknown or its package is not installed",
        "--report-to: 'nobody' is unknown or its package is not installed",
    ]
    assert "tensorboard" not in raised.value.problems[1]
