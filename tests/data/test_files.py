"""Tasks from the user's files and from the hub: splits, labels, ids, and errors that name file and line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

from prefixprop.data import ClassificationTask, Document, Row, load_files, load_hub
from prefixprop.data.documents import StoredDocuments
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
    ("value", "complaint"),
    [("", "is missing; .* name another column with --id-column"), (1.5, "got float '1.5'"), ("a", "also that of")],
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
    ):
        with pytest.raises(kind, match=complaint):
            load_files(*arguments)  # type: ignore[arg-type]


# --- several labels -------------------------------------------------------------------------------------------------

ROWS: list[tuple[str, list[Any]]] = [("one", ["law firm", 7]), ("two", []), ("three", [7, "7", "tax; VAT"])]
NAMES = ("7", "law firm", "tax; VAT")
LABELS = [(0, 1), (), (0, 2)]


def write_rows(path: Path, rows: list[tuple[str, Any]] = ROWS) -> Path:
    if path.suffix == ".jsonl":
        lines = (json.dumps({"text": text, "label": labels}) for text, labels in rows)
        path.write_text("\n".join(lines), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *((text, " | ".join(map(str, labels))) for text, labels in rows)])
    return path


@pytest.mark.parametrize(("name", "options"), [("x.jsonl", {}), ("x.csv", {"label_separator": "|"})])
def test_lists_and_separated_texts_say_the_same(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    task = load_files([write_rows(tmp_path / name)], **options)
    assert task.several_labels and task.label_names == NAMES
    assert [document.label for document in task.train] == LABELS
    assert task.label_array(task.train).tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert load_files([tmp_path / name], **options) == task  # from the cache
    assert StoredDocuments.packed(tuple(task.train)).labels == LABELS
    assert task.train[1:].labels == LABELS[1:] and task.train.select([2, 0]).labels == [LABELS[2], LABELS[0]]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([("a", ["x", "y"]), ("b", "x")], r":2: the label \(column 'label'\) must be a list, .*got str 'x'"),
        ([("a", "x"), ("b", ["x"])], r":2: the label .* is a list, and the rows before have one label each"),
        ([("a", ["x", "y"]), ("b", None)], r":2: .*must be a list, as in the rows before, \[\] without labels"),
        ([("a", ["x", " "])], r":1: the label .* is missing"),
        ([("a", ["x"]), ("b", [])], r":1: this and all of the 2 .* the label 'x' or none; .* Instead of lists, give"),
        ([("a", []), ("b", [])], "neither this nor any other training document has a label"),
        ([("a", ["0.5", "1"])], r":1: the label 0\.5 is a quantity"),
        ([("a", 1), ("b", "2.5")], r":2: the label 2\.5 is a quantity.* give them names, such as 'v2\.5'"),
    ],
)
def test_what_is_no_label(tmp_path: Path, rows: list[tuple[str, Any]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_files([write_rows(tmp_path / "x.jsonl", rows)])


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [(["tax", 1], ["1", "tax"], [1, 0]), ([[], ["tax; VAT"]], NAMES, [(), (2,)])],
)
def test_documents_with_given_labels(labels: list[Any], names: list[str], expected: list[Any]) -> None:
    rows = [Row(f"z:{place}", {"text": "A", "label": label}) for place, label in enumerate(labels)]
    found = label_documents(rows, Columns(), names, str.lower, several_labels=isinstance(expected[0], tuple))
    assert found == (Document("1", "a", expected[0]), Document("2", "a", expected[1]))
    with pytest.raises(ValueError, match=r"z:1: the label 'none' is unknown; the labels are"):
        label_documents([Row("z:1", {"text": "", "label": "none"})], Columns(), names)


# --- the hub --------------------------------------------------------------------------------------------------------

NAMED = Features({"text": Value("string"), "label": ClassLabel(names=["zebra", "ape", "unused"])})


SEVERAL = Features({"text": Value("string"), "label": Sequence(NAMED["label"])})


def table(labels: list[Any], features: Features | None = None) -> Dataset:
    texts = [f"{len(labels)}-{number}" for number in range(len(labels))]
    return Dataset.from_dict({"text": texts, "label": labels}, features=features)


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put splits on an invented hub, which has one data set."""

    def on_hub(**splits: Dataset) -> None:
        def load_dataset(name: str, config: str | None) -> DatasetDict:
            assert (name, config) == ("zoo/animals", "small")
            return DatasetDict(splits)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    return on_hub


def test_names_that_the_hub_knows_keep_its_order(publish: Any) -> None:
    publish(train=table([0, 1, 1], NAMED), validation=table([1, 0], NAMED), test=table([0, 1, 0, 0], NAMED))
    task = load_hub("zoo/animals", "small")
    assert task.name == "zoo/animals"
    assert task.label_names == ("zebra", "ape")
    assert task.dev == (Document("1", "2-0", 1), Document("2", "2-1", 0)) and task.test[0].label == 0
    assert task.notes() == []
    publish(train=table(["cat", "dog"]), dev=table(["dog"]))
    task = load_hub("zoo/animals", "small")
    assert task.label_names == ("cat", "dog") and [document.label for document in task.dev] == [1]


def test_lists_of_labels_that_the_hub_knows(publish: Any) -> None:
    publish(train=table([[0], [], [1, 0]], SEVERAL), test=table([[1], []], SEVERAL))
    task = load_hub("zoo/animals", "small")
    assert task.several_labels and task.label_names == ("zebra", "ape")
    assert [document.label for document in (*task.train, *task.test)] == [(0,), (), (0, 1), (1,), ()]


def test_a_secret_test_is_left_out_and_said(publish: Any) -> None:
    publish(train=table([0, 1] * 10, NAMED), test=table([-1, -1], NAMED))
    task = load_hub("zoo/animals", "small")
    assert task.test == () and task.dev == ()
    assert any("zoo/animals (small) are secret, so it is left out" in note for note in task.notes())


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        ({"train": [0, 1, -1]}, r"zoo/animals \(small\), train, row 3: the label .* from 0 to 2, got -1"),
        ({"everything": [0, 1]}, "has no split 'train'; its splits are everything"),
        ({"train": []}, "There are no training documents"),
    ],
)
def test_what_is_no_task_of_the_hub(publish: Any, splits: dict[str, list[int]], complaint: str) -> None:
    publish(**{name: table(labels, NAMED) for name, labels in splits.items()})
    with pytest.raises(ValueError, match=complaint):
        load_hub("zoo/animals", "small")


def test_without_the_network_the_error_says_what_to_do() -> None:
    with pytest.raises(ConnectionError, match=r"no/such-data cannot be loaded from the hub .* download its files"):
        load_hub("no/such-data")


def test_code_beside_a_data_set_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "animals"
    folder.mkdir()
    (folder / "animals.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ConnectionError, match="cannot be loaded from the hub"):
        load_hub(str(folder))
    assert not (tmp_path / "code-ran").exists()
