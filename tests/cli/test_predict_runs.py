"""`prefixprop predict` with several runs."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from command_line import call
from prefixprop.predict import PredictionOptions, token_batches, trained_model
from prefixprop.predict.loading import load_runs

from tiny_questions import invented
from tiny_runs import make_run, make_wikihop_run, texts, write_rows

DOCUMENTS = [*texts(9, seed=3), "", "w4 " * 50]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three that are adapters of one model, one with other labels; another kind of prefix, and fine-tuning; and one
    more adapter of the first model.
    """
    folder = tmp_path_factory.mktemp("runs")
    base = str(folder / "first" / "base")
    options: dict[str, dict[str, Any]] = {
        "first": {},
        "second": {"weights": 8, "label_names": ("no", "yes")},
        "third": {"weights": 9, "method": "prefix-propagation+lora", "max_length": 20},
        "tuning": {"weights": 10, "method": "prefix-tuning"},
        "whole": {"weights": 11, "method": "fine-tuning"},
        "reading": {"weights": 12, "method": "prefix-reading"},
    }
    made = []
    for name, own in options.items():
        run = make_run(folder / name, family="roberta", **({} if name == "first" else {"model": base}) | own)
        made.append(run.rename(folder / name / name))
    return made


predict = partial(call, "predict")


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same but for the last digits, which depend on the batches."""
    numbers = ("probabilities", "confidence")
    assert [found[name] for name in found if name not in numbers] == [
        expected[name] for name in expected if name not in numbers
    ]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


@pytest.mark.parametrize("options", [(), ("--long", "chunk-average"), ("--batch-tokens", "40")])
def test_every_run_answers_as_it_does_alone(runs: list[Path], tmp_path: Path, options: tuple[str, ...]) -> None:
    path = write_rows(tmp_path / "in.jsonl", DOCUMENTS)
    printed, told = predict(*runs, path, *options)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["id"] for line in lines] == [f"d{number}" for number in range(len(DOCUMENTS))]
    for run in runs:
        alone = [json.loads(line) for line in predict(run, path, *options)[0].splitlines()]
        for line, expected in zip(lines, alone, strict=True):
            assert list(line) == ["id", "predictions"] and list(line["predictions"]) == [each.name for each in runs]
            assert_alike({"id": line["id"], **line["predictions"][run.name]}, expected)
        assert f"{run.name}: {len(DOCUMENTS)} documents: " in told
    assert told.count("1 document is empty: d9") == 1  # what all say is said once


def test_documents_are_read_once_and_models_are_shared(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_runs(runs)
    assert len({id(run.model) for run in loaded}) == 4 and len({id(run.tokenizer) for run in loaded}) == 1
    assert [run.adapter for run in loaded] == ["run0", "run1", "run2", None, None, None]
    tokenized: list[int] = []
    original = trained_model.encode_documents
    monkeypatch.setattr(
        trained_model, "encode_documents", lambda given, *rest: tokenized.append(len(given)) or original(given, *rest)
    )
    trained_model.predict_with_each(loaded, DOCUMENTS, PredictionOptions())
    assert tokenized == [len(DOCUMENTS)] * 2  # one run cuts earlier


def test_runs_share_a_pass_where_the_documents_of_all_fit_in_a_batch(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_runs(runs[:2])
    read: list[int] = []
    original = transformers.RobertaModel.forward

    def forward(self: Any, input_ids: Any = None, **given: Any) -> Any:
        read.append(len(input_ids))
        return original(self, input_ids, **given)

    monkeypatch.setattr(transformers.RobertaModel, "forward", forward)
    for batch_tokens, passes in ((40, [4]), (39, [2, 2]), (10, [1, 1, 1, 1])):
        read.clear()
        adapters = [run.adapter for run in loaded]
        ids = [np.arange(4, 14, dtype=np.int32)] * 2
        token_batches.start_classifying(loaded[0].model, ids, 1, batch_tokens, False, 4096, adapters)()
        assert read == passes


def test_resume(runs: list[Path], tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", DOCUMENTS), tmp_path / "out.jsonl"
    _, told = predict(*runs[:2], path, "--output", output)
    begun = b"".join(output.read_bytes().splitlines(keepends=True)[:5])
    output.write_bytes(begun + b'{"id": "')
    _, again = predict(*runs[:2], path, "--output", output, "--resume")
    assert output.read_bytes().startswith(begun) and output.read_bytes().count(b"\n") == len(DOCUMENTS)
    assert again.splitlines()[:-1] == told.splitlines()[:-1]
    for others in (runs[:1], runs[1::-1], [runs[0], runs[2]]):
        _, refused = predict(*others, path, "--output", output, "--resume", status=1)
        assert "the run was first, second, now" in refused
    moved = shutil.copytree(runs[1], tmp_path / "moved")
    assert (
        "this line was not written by" in predict(runs[0], moved, path, "--output", output, "--resume", status=1)[1]
    )


def test_names_and_what_is_refused(runs: list[Path], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", DOCUMENTS[:2])
    assert "this run is given twice" in predict(runs[0], runs[1], runs[0], path, status=1)[1]
    same = shutil.copytree(runs[1], tmp_path / "first")
    line = json.loads(predict(runs[0], same, path)[0].splitlines()[0])
    common = os.path.commonpath([runs[0].parent, tmp_path])
    assert list(line["predictions"]) == [each.relative_to(common).as_posix() for each in (runs[0], same)]
    questions = {split: invented(3, seed) for seed, split in enumerate(("train", "dev", "test"))}
    wikihop = make_wikihop_run(tmp_path / "wikihop", questions)
    assert "trained on questions" in predict(runs[0], wikihop, path, status=1)[1]
