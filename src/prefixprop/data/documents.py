"""What every classification data set is made of: documents with a label, in three splits."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.cache import Stored, Writer, in_memory
from prefixprop.data.ragged import RaggedArray

SPLIT_NAMES = ("train", "dev", "test")


@dataclass(frozen=True)
class Document:
    """One labelled document; `label` is an index into the task's `label_names`."""

    id: str
    text: str
    label: int
    title: str | None = None


Split = Sequence[Document]


@dataclass(frozen=True)
class StoredTexts(Sequence[str]):
    """Texts on the disk, read one at a time: those at `places` of `content`, which is UTF-8."""

    content: RaggedArray
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self.content[int(self.places[index])].tobytes().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class StoredDocuments(Sequence[Document]):
    """Documents whose texts are on the disk, and read one at a time; `places` says which ones of the source.

    `source` identifies the documents that are stored together by what they are; `all_ids` and the like are theirs.
    """

    source: str
    content: RaggedArray
    all_ids: Sequence[str]
    all_labels: NDArray[np.int32]
    all_empty: NDArray[np.bool_]  # which texts have nothing but white space
    places: NDArray[np.int64]

    @classmethod
    def of(cls, entry: Stored, split: str) -> StoredDocuments:
        """The documents of a `SplitWriter`."""
        text, offsets, ids, labels, empty = (
            entry.arrays[f"{split}.{name}"] for name in ("text", "offsets", "ids", "labels", "empty")
        )
        return cls(
            entry.facts[f"{split}.source"],
            RaggedArray(text, offsets),
            json.loads(ids.tobytes()),
            labels,
            empty,
            np.arange(len(labels), dtype=np.int64),
        )

    @classmethod
    def packed(cls, documents: Split) -> StoredDocuments:
        """Documents in memory in this form, without their titles."""
        if isinstance(documents, cls):
            return documents

        def fill(writer: Writer) -> None:
            split = SplitWriter(writer, "packed")
            for document in documents:
                split.add_text(document.text)
            split.finish(ids_of(documents), labels_of(documents))

        return cls.of(in_memory(fill), "packed")

    @property
    def texts(self) -> StoredTexts:
        return StoredTexts(self.content, self.places)

    @property
    def ids(self) -> list[str]:
        return [self.all_ids[place] for place in self.places.tolist()]

    @property
    def labels(self) -> list[int]:
        labels: list[int] = self.all_labels[self.places].tolist()
        return labels

    @property
    def identity(self) -> str:
        """The same for the same documents of the same source."""
        return f"{self.source}/{hashlib.sha256(self.places.tobytes()).hexdigest()}"

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> StoredDocuments:
        """The documents at these indices, in this order, without reading them."""
        return replace(self, places=self.places[np.asarray(indices, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> StoredDocuments: ...

    def __getitem__(self, index: int | slice) -> Document | StoredDocuments:
        if isinstance(index, slice):
            return replace(self, places=self.places[index])
        place = int(self.places[index])
        return Document(self.all_ids[place], self.texts[index], int(self.all_labels[place]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))


class SplitWriter:
    """Writes the documents of a split into an entry of the cache, one text after the other."""

    def __init__(self, writer: Writer, split: str) -> None:
        self._writer, self._split = writer, split
        self._digest = hashlib.sha256()
        self._end = 0
        self._append("text", np.zeros(0, dtype=np.uint8))
        self._append("empty", np.zeros(0, dtype=np.bool_))
        self._append("offsets", np.array([0]))

    def add_text(self, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        self._digest.update(b"%d " % len(content) + content)
        self._end += len(content)
        self._append("text", np.frombuffer(content, dtype=np.uint8))
        self._append("empty", np.array([not text.strip()]))
        self._append("offsets", np.array([self._end]))

    def finish(self, ids: Sequence[str], labels: Sequence[int]) -> None:
        for name, values in (
            ("ids", np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)),
            ("labels", np.array(labels, dtype=np.int32)),
        ):
            self._append(name, values)
            self._digest.update(values.tobytes())
        self._writer.facts[f"{self._split}.source"] = self._digest.hexdigest()

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._writer.append(f"{self._split}.{name}", values)


def ids_of(documents: Split) -> list[str]:
    """The ids of documents, without reading texts that are on the disk."""
    return documents.ids if isinstance(documents, StoredDocuments) else [document.id for document in documents]


def labels_of(documents: Split) -> list[int]:
    """The labels of documents, without reading texts that are on the disk."""
    return documents.labels if isinstance(documents, StoredDocuments) else [document.label for document in documents]


def count_empty(documents: Split) -> int:
    """How many texts have nothing but white space."""
    if isinstance(documents, StoredDocuments):
        return int(documents.all_empty[documents.places].sum())
    return sum(not document.text.strip() for document in documents)


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
            empty = count_empty(documents)
            if empty:
                verb = "is" if empty == 1 else "are"
                notes.append(f"{empty:,} of {len(documents):,} {split_name} documents {verb} empty")
        return notes

    def _check_split(self, split_name: str) -> None:
        documents = self.split(split_name)
        where = f"split {split_name!r} of task {self.name!r}"
        for document_id, label in zip(ids_of(documents), labels_of(documents), strict=True):
            if not 0 <= label < self.num_labels:
                raise ValueError(
                    f"Document {document_id!r} in {where} has label {label}, "
                    f"but labels run from 0 to {self.num_labels - 1}."
                )
        # Predictions are stored by id, so two documents of one split must not share one.
        counts = Counter(ids_of(documents))
        repeated = [document_id for document_id, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(f"Document id {repeated[0]!r} occurs more than once in {where}.")
