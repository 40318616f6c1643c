"""What every classification data set is made of: documents with a label, in three splits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

SPLIT_NAMES = ("train", "dev", "test")


@dataclass(frozen=True)
class Document:
    """One labelled document; `label` is an index into the task's `label_names`."""

    id: str
    text: str
    label: int
    title: str | None = None


Split = tuple[Document, ...]


@dataclass(frozen=True)
class ClassificationTask:
    """A data set of single-label classification, checked when it is made; a split may be empty.

    `remarks` say how the loader made this data set; `notes()` shows them to people.
    """

    name: str
    label_names: tuple[str, ...]
    train: Split
    dev: Split
    test: Split
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.label_names) < 2:
            raise ValueError(f"Task {self.name!r} needs at least two labels, got {list(self.label_names)}.")
        for split_name in SPLIT_NAMES:
            self._check_split(split_name)

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    def split(self, name: str) -> Split:
        """Return the split of that name: "train", "dev" or "test"."""
        if name not in SPLIT_NAMES:
            raise ValueError(f"Unknown split {name!r}; choose one of {', '.join(SPLIT_NAMES)}.")
        documents: Split = getattr(self, name)
        return documents

    def notes(self) -> list[str]:
        """What a user should know about the data: the loader's remarks, and how many documents are empty."""
        notes = list(self.remarks)
        for split_name in SPLIT_NAMES:
            documents = self.split(split_name)
            empty = sum(not document.text.strip() for document in documents)
            if empty:
                verb = "is" if empty == 1 else "are"
                notes.append(f"{empty:,} of {len(documents):,} {split_name} documents {verb} empty")
        return notes

    def _check_split(self, split_name: str) -> None:
        documents = self.split(split_name)
        where = f"split {split_name!r} of task {self.name!r}"
        for document in documents:
            if not 0 <= document.label < self.num_labels:
                raise ValueError(
                    f"Document {document.id!r} in {where} has label {document.label}, "
                    f"but labels run from 0 to {self.num_labels - 1}."
                )
        # Predictions are stored by id, so two documents of one split must not share one.
        counts = Counter(document.id for document in documents)
        repeated = [document_id for document_id, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(f"Document id {repeated[0]!r} occurs more than once in {where}.")
