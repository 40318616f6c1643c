"""What every classification data set is made of: documents with a label, or several, in three splits."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.cache import RaggedArray, Stored, Writer, in_memory, stored
from prefixprop.data.rows import no_text

if TYPE_CHECKING:
    from prefixprop.data.tasks import Task

SPLIT_NAMES = ("train", "dev", "test")
CALIBRATION = "calibration"  # documents of the dev set that were set aside, see `ClassificationTask`
# The names in "training set", "training documents".
IN_WORDS = {"train": "training", "dev": "dev", "test": "test", CALIBRATION: "calibration"}
_EMPTY = 0  # the digest of a text that has nothing but white space
_WHITE_SPACE = b" \t\n\r\v\f"


Label = int | tuple[int, ...]  # an index into the task's `label_names`, or several, ascending


def as_set(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)


@dataclass(frozen=True)
class Document:
    """One labelled document."""

    id: str
    text: str
    label: Label
    title: str | None = None


@dataclass(frozen=True)
class StoredTexts(Sequence[str]):
    """Texts, decoded one at a time: those at `places` of `content`, which is UTF-8."""

    content: RaggedArray
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self.content[int(self.places[index])].tobytes().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class StoredDocuments(Sequence[Document]):
    """Documents whose texts are bytes, in memory or on the disk, of which one is read at a time.

    `places` selects documents of the source. `source` identifies all documents that are stored together, by their
    content; `all_ids`, `all_labels` and so on have entries for all of them.
    """

    source: str
    content: RaggedArray
    all_ids: Sequence[str]
    all_labels: NDArray[np.int32] | RaggedArray  # ragged where a document can have several
    all_digests: NDArray[np.uint64]  # see `digests`
    places: NDArray[np.int64]
    all_titles: Sequence[str | None] | None = None

    @classmethod
    def of(cls, entry: Stored, split: str) -> StoredDocuments:
        """The documents of a `SplitWriter`."""
        text, offsets, ids, labels, digests = (
            entry.arrays[f"{split}.{name}"] for name in ("text", "offsets", "ids", "labels", "digests")
        )
        label_offsets, titles = (entry.arrays.get(f"{split}.{name}") for name in ("label_offsets", "titles"))
        return cls(
            entry.facts[f"{split}.source"],
            RaggedArray(text, offsets),
            json.loads(ids.tobytes()),
            labels if label_offsets is None else RaggedArray(labels, label_offsets),
            digests,
            np.arange(len(digests), dtype=np.int64),
            None if titles is None else json.loads(titles.tobytes()),
        )

    @classmethod
    def packed(cls, documents: Sequence[Document]) -> StoredDocuments:
        """Documents in memory in this form."""
        if isinstance(documents, cls):
            return documents

        def fill(writer: Writer) -> None:
            split = SplitWriter(writer, "packed")
            for document in documents:
                split.add_text(document.text)
            ids, labels, titles = ([getattr(one, name) for one in documents] for name in ("id", "label", "title"))
            split.finish(ids, labels, titles if any(titles) else None)

        return cls.of(in_memory(fill), "packed")

    @property
    def texts(self) -> StoredTexts:
        return StoredTexts(self.content, self.places)

    @property
    def ids(self) -> list[str]:
        return [self.all_ids[place] for place in self.places.tolist()]

    @property
    def labels(self) -> list[Label]:
        if isinstance(self.all_labels, RaggedArray):
            return [tuple(self.all_labels[place].tolist()) for place in self.places.tolist()]
        labels: list[Label] = self.all_labels[self.places].tolist()
        return labels

    @property
    def digests(self) -> NDArray[np.uint64]:
        """A number for each text: the same for texts that differ in white space only, 0 for an empty one."""
        return self.all_digests[self.places]

    @property
    def identity(self) -> str:
        """A text that is the same for the same documents of the same source."""
        return f"{self.source}/{hashlib.sha256(self.places.tobytes()).hexdigest()}"

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> StoredDocuments:
        """The documents at these indices, in this order, without reading them."""
        return replace(self, places=self.places[np.asarray(indices, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int | slice) -> Any:  # a document, or those of a slice
        if isinstance(index, slice):
            return replace(self, places=self.places[index])
        place = int(self.places[index])
        title = None if self.all_titles is None else self.all_titles[place]
        return Document(self.all_ids[place], self.texts[index], self.select([index]).labels[0], title)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))


class SplitWriter:
    """Writes the documents of a split into an entry of the cache, one text after the other."""

    def __init__(self, writer: Writer, split: str) -> None:
        self._writer, self._split = writer, split
        self._digest = hashlib.sha256()
        self._end = 0
        self._append("text", np.zeros(0, dtype=np.uint8))
        self._append("digests", np.zeros(0, dtype=np.uint64))
        self._append("offsets", np.array([0]))

    def add_text(self, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        self._digest.update(b"%d " % len(content) + content)
        self._end += len(content)
        self._append("text", np.frombuffer(content, dtype=np.uint8))
        self._append("digests", np.array([_text_digest(text)], dtype=np.uint64))
        self._append("offsets", np.array([self._end]))

    def finish(self, ids: Sequence[str], labels: Sequence[Label], titles: Sequence[str | None] | None = None) -> None:
        arrays = {"ids": np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)}
        if titles is not None:
            arrays["titles"] = np.frombuffer(json.dumps(titles).encode(), dtype=np.uint8)
        sets = [label for label in labels if isinstance(label, tuple)]
        if sets:
            arrays["labels"] = np.array([label for several in sets for label in several], dtype=np.int32)
            arrays["label_offsets"] = np.cumsum([0, *map(len, sets)], dtype=np.int64)
        else:
            arrays["labels"] = np.array(labels, dtype=np.int32)
        for name, values in arrays.items():
            self._append(name, values)
            self._digest.update(values.tobytes())
        self._writer.facts[f"{self._split}.source"] = self._digest.hexdigest()

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._writer.append(f"{self._split}.{name}", values)


def _text_digest(text: str) -> int:
    if not text or text.isspace():
        return _EMPTY
    words = text.encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") or 1


def first_copies(documents: StoredDocuments) -> NDArray[np.int64]:
    """For every document the index of the first one with the same text; an empty document is a copy of none."""
    digests = documents.digests
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    return np.where(digests == _EMPTY, np.arange(len(digests)), first[inverse])


def checked_texts(texts: Iterable[object]) -> Iterator[str]:
    """The texts, each checked when it is asked for; anything but one text per document raises `TypeError`."""
    if isinstance(texts, str) or getattr(texts, "ndim", 1) != 1:
        raise TypeError("Give a list or a column of texts, also for a single one: predict([text]).")

    def checked() -> Iterator[str]:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"Document {index} (from 0) {no_text(text)}")
            yield text

    return checked()


def multi_hot(labels: Sequence[Any], count: int) -> NDArray[np.int64]:
    """Label sets as scikit-learn has them: [documents, labels] of 0 and 1."""
    found = np.zeros((len(labels), count), dtype=np.int64)
    for row, several in zip(found, labels, strict=True):
        row[list(several)] = 1
    return found


@dataclass(frozen=True)
class ClassificationTask:
    """A classification data set, checked when it is made; a split may be empty.

    A split is given as any sequence of documents and has them as `StoredDocuments`.

    With `several_labels` a document has any number of labels, none included. `remarks` say how the loader made this
    data set; `notes()` shows them to people. `calibration` has documents of the dev set that a run set aside: they
    decide which of its answers can be trusted, and nothing else.
    """

    name: str
    label_names: tuple[str, ...]
    train: StoredDocuments
    dev: StoredDocuments
    test: StoredDocuments
    remarks: tuple[str, ...] = ()
    calibration: StoredDocuments = ()  # type: ignore[assignment]
    several_labels: bool = False

    def __post_init__(self) -> None:
        if len(self.label_names) < 2:
            raise ValueError(f"Task {self.name!r} needs at least two labels, got {list(self.label_names)}.")
        for split_name in (*SPLIT_NAMES, CALIBRATION):
            object.__setattr__(self, split_name, StoredDocuments.packed(getattr(self, split_name)))
            self._check_split(split_name)

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    def split(self, name: str) -> StoredDocuments:
        """Return the split of that name: "train", "dev", "test" or "calibration"."""
        documents: StoredDocuments = getattr(self, name)
        return documents

    def label_array(self, documents: StoredDocuments) -> NDArray[np.int64]:
        """The labels of documents as scikit-learn has them: [documents], or [documents, labels] of 0 and 1."""
        if not self.several_labels:
            return np.array(documents.labels, dtype=np.int64)
        return multi_hot(documents.labels, self.num_labels)

    def notes(self) -> list[str]:
        """What a user should know: the loader's remarks, empty documents, copies, and labels that a split lacks."""
        notes = list(self.remarks)
        splits = {name: self.split(name) for name in SPLIT_NAMES if self.split(name)}
        digests = {name: documents.digests for name, documents in splits.items()}
        for name, found in digests.items():
            texts = found[found != _EMPTY]
            notes += _counted(len(found) - len(texts), len(found), name, "empty")
            notes += _counted(len(texts) - len(np.unique(texts)), len(found), name, "the same as another one")
        for name, other in (("dev", "train"), ("test", "train"), ("test", "dev")):
            if name in splits and other in splits:
                shared = np.isin(digests[name], digests[other]) & (digests[name] != _EMPTY)
                what = f"also in the {IN_WORDS[other]} set: metrics are too good; remove them from one of the two"
                notes += _counted(int(shared.sum()), len(shared), name, what)
        for name, documents in splits.items():
            there = map(as_set, documents.labels)
            if missing := set(range(self.num_labels)).difference(*there):
                names = ", ".join(self.label_names[label] for label in sorted(missing))
                notes.append(f"no {IN_WORDS[name]} document has the label {names}")
        return notes

    def _check_split(self, split_name: str) -> None:
        documents = self.split(split_name)
        where = f"split {split_name!r} of task {self.name!r}"
        for document_id, given in zip(documents.ids, documents.labels, strict=True):
            if isinstance(given, tuple) != self.several_labels:
                one, other = ("several labels", "one") if self.several_labels else ("one label", "several")
                raise ValueError(f"Document {document_id!r} in {where} must have {one}, not {other}: {given}.")
            for label in as_set(given):
                if not 0 <= label < self.num_labels:
                    raise ValueError(
                        f"Document {document_id!r} in {where} has label {label}, "
                        f"but labels run from 0 to {self.num_labels - 1}."
                    )
        # Predictions are stored by id, so two documents of one split must not share one.
        for document_id, count in Counter(documents.ids).most_common(1):
            if count > 1:
                raise ValueError(f"Document id {document_id!r} occurs more than once in {where}.")


def _counted(count: int, total: int, split: str, what: str) -> Iterator[str]:
    """A note such as "3 of 20 dev documents are empty", if there are any."""
    if count:
        yield f"{count:,} of {total:,} {IN_WORDS[split]} documents {'is' if count == 1 else 'are'} {what}"


def fingerprint(task: Task) -> str:
    """Identifies a data set: the same for the same documents, wherever they are stored."""
    splits = {name: task.split(name) for name in SPLIT_NAMES}

    def fill(writer: Writer) -> None:
        digest = hashlib.sha256()
        for name, documents in splits.items():
            digest.update(f"{name}:".encode())
            for document in documents:
                digest.update(repr(document).encode("utf-8", "surrogatepass"))
        writer.facts["fingerprint"] = digest.hexdigest()[:16]

    if isinstance(task, ClassificationTask):
        # Kept in the cache, so that documents on the disk are not read at every start.
        identities = [task.split(name).identity for name in SPLIT_NAMES]
        key = f"{identities} {Document('', '', 0)}"  # a document with another field would have another fingerprint
        entry = stored("fingerprint", key, fill)
    else:
        entry = in_memory(fill)
    known: str = entry.facts["fingerprint"]
    return known
