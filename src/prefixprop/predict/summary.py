"""A summary of a stream of predictions: how many, which labels, and what a user should look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prefixprop.predict.predictor import Prediction

_NAMED = 5


@dataclass
class Remarkable:
    """Documents that share something unusual: how many, and the first few by name."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.names) < _NAMED:
            self.names.append(name)

    def described(self, what: str) -> str:
        """Such as "2 documents are empty: 4, 17"; `what` follows "documents are"."""
        subject = "1 document is" if self.count == 1 else f"{self.count:,} documents are"
        more = f" and {self.count - len(self.names):,} more" if self.count > len(self.names) else ""
        return f"{subject} {what}: {', '.join(self.names)}{more}"


@dataclass
class PredictionSummary:
    """Counts over a stream, in constant memory except for one number per id that could repeat."""

    max_length: int
    documents: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    cut: Remarkable = field(default_factory=Remarkable)
    chunked: Remarkable = field(default_factory=Remarkable)
    empty: Remarkable = field(default_factory=Remarkable)
    repeated: Remarkable = field(default_factory=Remarkable)
    _seen: set[int] = field(default_factory=set)

    def add(self, name: str, text: str, prediction: Prediction) -> None:
        """Count one document and what was predicted for it."""
        self.documents += 1
        self.labels[prediction.label] += 1
        if prediction.truncated:
            self.cut.add(name)
        elif prediction.chunks > 1:
            self.chunked.add(name)
        if not text.strip():
            self.empty.add(name)

    def see_id(self, name: str) -> None:
        """Count the id if an earlier document has it; only its hash is stored, as ids may be long."""
        known = hash(name)
        if known in self._seen:
            self.repeated.add(name)
        self._seen.add(known)

    def warnings(self) -> list[str]:
        """What a user should look at, one sentence each."""
        limit = f"longer than the limit of {self.max_length:,} tokens"
        unusual = {
            f"{limit} and cut there (chunk-average reads them whole)": self.cut,
            f"{limit} and read in chunks": self.chunked,
            "empty": self.empty,
            "named like an earlier one": self.repeated,
        }
        return [documents.described(what) for what, documents in unusual.items() if documents.count]
