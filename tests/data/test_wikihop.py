"""Reading QAngaroo's WikiHop."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data import Question, QuestionTask, load_wikihop, read_questions


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A question as QAngaroo writes it."""
    return {
        "id": f"WH_train_{number}",
        "query": "country_of_citizenship anna example",
        "candidates": ["austria", "chile", "norway"],
        "supports": ["Anna Example is a skier from Oslo .", "Oslo is the capital of Norway ."],
        "answer": "norway",
        **changes,
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in record().items() if key != name}


def as_lines(records: list[Any]) -> str:
    return "\n".join(json.dumps(item) for item in records)


def write(path: Path, records: list[Any]) -> Path:
    text = as_lines(records) if ".jsonl" in path.name else json.dumps(records, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".json.gz", ".jsonl.gz"])
def test_every_form_reads_the_same(ending: str, tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path / f"dev{ending}", [record(3, annotations=[["follows"]]), record(4)]))
    assert [question.id for question in questions] == ["WH_train_3", "WH_train_4"]
    assert questions[0] == Question(
        id="WH_train_3",
        query="country_of_citizenship anna example",
        candidates=("austria", "chile", "norway"),
        supports=("Anna Example is a skier from Oslo .", "Oslo is the capital of Norway ."),
        answer=2,
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (without("query"), "the field 'query' is missing; there are: answer, candidates, id, supports"),
        (without("answer"), "the field 'answer' is missing"),
        (record(answer="peru"), "the answer 'peru' is not among the candidates ['austria', 'chile', 'norway']"),
        (record(candidates=[]), "question 'WH_train_0' has no candidates"),
        (record(candidates="norway"), "the field 'candidates' must be a list of strings"),
        (record(supports=["text", 3]), "the field 'supports' must be a list of strings"),
        (record(id=7), "the field 'id' must be a string, got int"),
        (record(1), "the id 'WH_train_1' is already that of record 1"),
    ],
)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_a_bad_record_is_named(ending: str, bad: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"train{ending}", [record(1), bad])
    with pytest.raises(ValueError) as raised:
        read_questions(path)
    assert str(raised.value).startswith(f"{path}, record 2: {message}")


def test_what_is_no_array_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    for content, message in (
        (json.dumps(record()).encode(), f"{path}: expected a JSON array of questions, got dict"),
        (b'["question"]', f"{path}, record 1: expected a JSON object, got str"),
        (b'[\n{"id": 3,\n oops', f"{path}:3: broken JSON"),
        (as_lines([record(0), record(1)]).encode(), f"{path}:2: broken JSON: Extra data"),
        (b"\xff", f"{path}: the text is not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError) as raised:
            read_questions(path)
        assert str(raised.value).startswith(message)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "train.json.gz"
    path.write_bytes(gzip.compress(json.dumps([record(number) for number in range(50)]).encode())[:-20])
    with pytest.raises(ValueError, match=r"train\.json\.gz: the gzip data is damaged"):
        read_questions(path)


def test_without_a_test_file_dev_is_halved(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [record(number) for number in range(3)])
    write(tmp_path / "dev.jsonl.gz", [record(number) for number in range(100, 121)])
    task = load_wikihop(tmp_path)
    assert (task.name, len(task.train), len(task.dev), len(task.test)) == ("wikihop", 3, 11, 10)
    ids = {question.id for question in task.dev + task.test}
    assert ids == {f"WH_train_{number}" for number in range(100, 121)}
    assert task.dev != load_first_half(task)
    assert load_wikihop(str(tmp_path)) == task


def load_first_half(task: QuestionTask) -> tuple[Question, ...]:
    return tuple(sorted(task.dev + task.test, key=lambda question: question.id)[: len(task.dev)])


def test_a_test_file_is_the_test_split(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "dev", "test")):
        write(tmp_path / f"{split}.json", [record(number), record(number + 10)])
    task = load_wikihop(tmp_path)
    for number, split in enumerate(("train", "dev", "test")):
        assert [question.id for question in task.split(split)] == [f"WH_train_{number}", f"WH_train_{number + 10}"]
    with pytest.raises(ValueError, match="Unknown split 'validation'; choose one of train, dev, test"):
        task.split("validation")


def test_missing_and_ambiguous_files(tmp_path: Path) -> None:
    write(tmp_path / "train.json", [record()])
    with pytest.raises(FileNotFoundError, match=r"no WikiHop questions for 'dev'; expected one of dev\.json, "):
        load_wikihop(tmp_path)
    write(tmp_path / "dev.json", [record()])
    write(tmp_path / "dev.jsonl", [record()])
    with pytest.raises(ValueError, match=r"several files of the split 'dev' \(dev\.json, dev\.jsonl\); keep one"):
        load_wikihop(tmp_path)
