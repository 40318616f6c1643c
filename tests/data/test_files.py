"""Tasks from the user's files and folders: splits, labels, ids, copies, and errors that name file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from prefixprop.data import ClassificationTask, Document, Row, load_files
from prefixprop.data.files import Columns, label_documents

TRAIN = [{"text": f"letter {number}", "label": "ham" if number % 2 else "spam"} for number in range(6)]


def write_json(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def labels_of(task: ClassificationTask, split: str) -> list[str]:
    return [task.label_names[document.label] for document in task.split(split)]


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_json(tmp_path / "train.jsonl", TRAIN)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    return write_json(tmp_path / "dev.jsonl", [{**record, "text": f"dev {record['text']}"} for record in TRAIN[:2]])


def test_splits_labels_and_numbered_documents(train: Path, dev: Path) -> None:
    task = load_files([train], [dev], name="mail")
    assert task.name == "mail"
    assert task.label_names == ("ham", "spam")
    assert task.train[:2] == (Document("1", "letter 0", 1), Document("2", "letter 1", 0))
    assert [document.id for document in task.dev] == ["1", "2"]
    assert task.test == () and task.notes() == []


def test_named_columns_ids_and_several_files_of_different_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("no,body,department\n7,first,sales\n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text("department\tno\tbody\nhelp\t8\tsecond\n", encoding="utf-8")
    third = pyarrow.table({"no": [9], "body": ["third"], "department": ["help"]})
    pyarrow.parquet.write_table(third, tmp_path / "c.parquet")
    columns = {"text_column": "body", "label_column": "department", "id_column": "no"}
    task = load_files([tmp_path / "a.csv", str(tmp_path / "b.tsv")], [tmp_path / "c.parquet"], **columns)
    assert task.label_names == ("help", "sales")
    assert task.train == (Document("7", "first", 1), Document("8", "second", 0))
    assert task.dev == (Document("9", "third", 0),)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, -1], ("-1", "9", "10")),
        (["10", "9", " 100 "], ("9", "10", "100")),
        ([1.0, 0.0, 2], ("0", "1", "2")),
        ([True, False], ("False", "True")),
        (["10", "9", "none"], ("10", "9", "none")),
        (["b", "B", "é"], ("B", "b", "é")),
        (["v1.10", "v1.1", "v1.2"], ("v1.1", "v1.10", "v1.2")),
        (["1", "01", "2"], ("01", "1", "2")),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993")),
    ],
)
def test_labels_are_sorted_as_numbers_or_names(tmp_path: Path, labels: list[Any], names: tuple[str, ...]) -> None:
    path = write_json(tmp_path / "x.jsonl", [{"text": "t", "label": label} for label in labels])
    dev = write_json(tmp_path / "y.jsonl", [{"text": "t", "label": labels[0]}])
    task = load_files([path], [dev])
    assert task.label_names == names
    assert labels_of(task, "train") == [
        f"{label:g}" if type(label) is float else str(label).strip() for label in labels
    ]
    assert task.dev[0].label == task.train[0].label


def test_a_label_that_the_training_set_lacks(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.jsonl", [{"text": f"t{number}", "label": number} for number in range(40)])
    other = write_json(tmp_path / "other.jsonl", [{"text": "t", "label": 1}, {"text": "u", "label": "phishing"}])
    complaint = r"the label 'phishing' is not in the training set; the labels are 0, 1, .*, 29 and 10 more\."
    with pytest.raises(ValueError, match=rf"other\.jsonl:2: {complaint}"):
        load_files([path], test=[other])


MISSING = r"the label \(column 'label'\) is missing"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"text": "t"}, r"there is no column 'label'; the columns are text\."),
        ({"body": "t", "label": "ham"}, r"there is no column 'text'; the columns are body, label\."),
        ({"text": "t", "label": None}, MISSING),
        ({"text": "t", "label": "  "}, MISSING),
        ({"text": "t", "label": float("nan")}, MISSING),
        ({"text": "t", "label": ["ham"]}, "is a list, and the rows before have one label each"),
        ({"text": "t", "label": {"is": "ham"}}, r"must be a name or a number, got dict"),
        ({"text": 5, "label": "ham"}, r"the column 'text' must hold text, got int '5'"),
        ({"text": ["a", "b"], "label": "ham"}, "must hold one text per document; join the texts of a pair or a list"),
    ],
)
def test_bad_rows_are_reported_with_file_and_line(
    tmp_path: Path, dev: Path, record: dict[str, Any], complaint: str
) -> None:
    path = write_json(tmp_path / "x.jsonl", [*TRAIN, record])
    with pytest.raises(ValueError, match=complaint) as caught:
        load_files([path], [dev])
    assert str(caught.value).startswith(f"{path}:7: ")


def test_ids_must_differ_within_a_split_whatever_the_file(tmp_path: Path) -> None:
    records = [{**record, "id": number} for number, record in enumerate(TRAIN)]
    first = write_json(tmp_path / "first.jsonl", records)
    second = write_json(tmp_path / "second.jsonl", [{**TRAIN[0], "id": "3"}])
    with pytest.raises(ValueError, match="the id '3' is also that of") as caught:
        load_files([first, second], id_column="id")
    assert str(caught.value).startswith(f"{second}:1: ") and f"{first}:4;" in str(caught.value)
    assert load_files([first], [second], id_column="id").dev[0].id == "3"


@pytest.mark.parametrize(
    ("value", "complaint"), [("", "is missing"), (1.5, "got float '1.5'"), ("a", "also that of")]
)
def test_a_column_id_must_hold_ids_if_it_is_named(tmp_path: Path, value: Any, complaint: str) -> None:
    records = [{**record, "id": one} for record, one in zip(TRAIN, ("a", value), strict=False)]
    path, dev = write_json(tmp_path / "x.jsonl", records), write_json(tmp_path / "dev.jsonl", TRAIN[:2])
    with pytest.raises(ValueError, match=rf"x\.jsonl:2: the id .*{complaint}"):
        load_files([path], id_column="id")
    assert [document.id for document in load_files([path], [dev]).train] == ["1", "2"]
    write_json(path, [{**records[0], "id": 7}, {**records[1], "id": "b"}])
    task = load_files([path], [dev])
    assert [document.id for document in (*task.train, *task.dev)] == ["7", "b", "1", "2"]


def test_what_makes_no_task(train: Path, dev: Path, tmp_path: Path) -> None:
    spam = write_json(tmp_path / "spam.jsonl", TRAIN[::2])
    for arguments, kind, complaint in (
        (([spam], [dev]), ValueError, r"spam\.jsonl:1: .* the 3 training documents have the label 'spam'; .* two"),
        (([train], [train.parent / "." / "train.jsonl"]), ValueError, r"train\.jsonl: given for both train and dev"),
        ((str(train),), TypeError, r"train must be a list of files, got .*train\.jsonl"),
        (([],), ValueError, "at least one file of training documents"),
        (([train], [tmp_path / "absent.csv"]), FileNotFoundError, r"absent\.csv: there is no such file"),
    ):
        with pytest.raises(kind, match=complaint):
            load_files(*arguments)  # type: ignore[arg-type]


def test_documents_with_given_labels() -> None:
    rows = [Row("a.jsonl:1", {"text": "A", "label": "tax"}), Row("a.jsonl:2", {"text": "B", "label": 1})]
    found = label_documents(rows, Columns(), ["1", "tax"], prepare=str.lower)
    assert found == (Document("1", "a", 1), Document("2", "b", 0))
