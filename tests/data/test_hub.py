from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from prefixprop.data import Document, load_hub

NAMED = Features({"text": Value("string"), "label": ClassLabel(names=["zebra", "ape", "unused"])})


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


def test_labels_without_names(publish: Any) -> None:
    publish(train=table(["cat", "dog"]), dev=table(["dog"]))
    task = load_hub("zoo/animals", "small")
    assert task.label_names == ("cat", "dog") and [document.label for document in task.dev] == [1]


def test_a_secret_test_is_left_out_and_said(publish: Any) -> None:
    publish(train=table([0, 1] * 10, NAMED), test=table([-1, -1], NAMED))
    task = load_hub("zoo/animals", "small")
    assert task.test == () and task.dev == ()
    assert any("zoo/animals (small) are secret, so it is left out" in note for note in task.notes())


@pytest.mark.parametrize(
    ("splits", "columns", "complaint"),
    [
        ({"train": [0, 1, -1]}, {}, r"zoo/animals \(small\), train, row 3: the label .* from 0 to 2, got -1"),
        ({"train": [0, 1]}, {"text_column": "body"}, r"train, row 1: there is no column 'body'; .* text, label\."),
        ({"train": [0, 1]}, {"label_column": "kind"}, "there is no column 'kind'"),
        ({"everything": [0, 1]}, {}, "has no split 'train'; its splits are everything"),
        ({"train": []}, {}, "There are no training documents"),
    ],
)
def test_what_is_no_task(publish: Any, splits: dict[str, list[int]], columns: dict[str, str], complaint: str) -> None:
    publish(**{name: table(labels, NAMED) for name, labels in splits.items()})
    with pytest.raises(ValueError, match=complaint):
        load_hub("zoo/animals", "small", **columns)


def test_without_the_network_the_error_says_what_to_do() -> None:
    with pytest.raises(ConnectionError, match=r"no/such-data cannot be loaded from the hub .* download its files"):
        load_hub("no/such-data")


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="Data sets of the hub need the package datasets: pip install datasets"):
        load_hub("zoo/animals", "small")


def test_code_beside_a_data_set_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "animals"
    folder.mkdir()
    (folder / "animals.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ConnectionError, match="cannot be loaded from the hub"):
        load_hub(str(folder))
    assert not (tmp_path / "code-ran").exists()
