"""A classifier of long documents as a scikit-learn estimator.

>>> from prefixprop import DocumentClassifier
>>> classifier = DocumentClassifier(method="readers", max_length=512).fit(texts, labels)
>>> classifier.expected_accuracy_, classifier.predict(new_texts)
>>> classifier.save("my-model")

`fit` makes the run that `prefixprop train` makes, and `predict` answers as `prefixprop predict` does.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from prefixprop.atomic_files import replacing_folder, write_json
from prefixprop.choices import DEFAULT_MODEL
from prefixprop.data.documents import SPLIT_NAMES, ClassificationTask, Document, StoredDocuments, checked_texts
from prefixprop.progress import Progress
from prefixprop.runs.directory import LOCK, RunDirectory, check_may_start
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.run_settings import SETTINGS, RunSettings

if TYPE_CHECKING:
    from prefixprop.predict import Explanation, Prediction, TrainedModel

# What a copy of a run has no use for; predictions tell about the documents that a run was trained on.
_NOT_COPIED = (LOCK, "checkpoints", "runs")
_NOT_PUBLISHED = (*_NOT_COPIED, "predictions")


class DocumentClassifier(ClassifierMixin, BaseEstimator):
    """Classifies documents, each a text with one label.

    Parameters are settings of a run, with the names and defaults of `prefixprop train`; None means its choice.

    Args:
        method: What is trained, such as "readers", "tfidf" or "prefix-propagation+lora".
        model: The encoder: one in the package, one on the hub, or a folder.
        max_length: Tokens that are read of a document.
        learning_rate: The peak learning rate.
        epochs: Passes over the documents.
        batch_size: Documents per step.
        target_precision: The share of accepted answers that should be right, such as 0.95; `predict_details` then
            says which answers to accept.
        seed: The seed of everything random.
        settings: Any other settings by name, such as `{"lora_rank": 16}`.
        long: How a longer document is read: "truncate" reads its first `max_length` tokens, "chunk-average" all
            of it in chunks.
        run_dir: Where the run is written; a run that is there is replaced. None: a folder that is removed with this
            object.
        verbose: Whether to show progress and results on standard error. If not, notes become warnings.

    Attributes:
        classes_: The labels, in the order of the columns of `predict_proba`.
        expected_accuracy_: The share of new documents that should be answered correctly: by cross-fitted answers for
            "readers" and "tfidf", otherwise on the dev set, a tenth of the documents, which also chose the epoch.
        cv_results_: The accuracy of everything that was tried on the same documents, with the columns of
            `GridSearchCV`: `params`, `mean_test_score` and `rank_test_score`.
        trust_: Which answers can be accepted, and how sure that is; None without a `target_precision`.
        metrics_: All of the run's `metrics.json`.
        run_: The loaded run, see `prefixprop.load_run`; `run_.run_dir` is its folder.
    """

    def __init__(
        self,
        *,
        method: str | None = None,
        model: str = DEFAULT_MODEL,
        max_length: int | None = None,
        learning_rate: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        target_precision: float | None = None,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        long: str = "truncate",
        run_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.model = model
        self.max_length = max_length
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.target_precision = target_precision
        self.seed = seed
        self.settings = settings
        self.long = long
        self.run_dir = run_dir
        self.verbose = verbose

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> DocumentClassifier:
        """Train on texts and their labels: lists, arrays or columns of pandas."""
        from prefixprop.predict.loading import quiet_transformers
        from prefixprop.predict.trained_model import PredictionOptions
        from prefixprop.train.run import train

        PredictionOptions(self.long)  # which checks it
        texts, settings = list(checked_texts(X)), self._run_settings()
        if y is None:
            raise ValueError("DocumentClassifier requires y to be passed, but the target y is None.")
        check_consistent_length(texts, y)
        classes, indices = _classes(y)
        task = _task(texts, indices.tolist(), tuple(map(str, classes.tolist())))
        folder = _TemporaryFolder() if self.run_dir is None else None
        directory = RunDirectory(Path(str(self.run_dir)) if folder is None else folder.path)
        with self._progress() as progress, quiet_transformers():
            train(settings, directory.path, overwrite=True, progress=progress, documents=task)
        if classes.dtype.kind not in "OSU":
            write_json(directory.classes, classes.tolist())
        self._folder = folder  # whose end removes it
        return self._open(directory)

    def predict(self, X: Iterable[str]) -> NDArray[Any]:
        """The most probable label of every text."""
        indices = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[indices]
        return labels

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float64]:
        """The calibrated probability of every label, [texts, classes]."""
        rows = [list(details.probabilities.values()) for details in self.predict_details(X)]
        return np.array(rows).reshape(-1, len(self.classes_))

    def predict_details(self, X: Iterable[str]) -> list[Prediction]:
        """All that `prefixprop predict` says of every text; `vars` makes a dict of each."""
        check_is_fitted(self)
        return self.run_.predict(X, long=self.long)

    def explain(self, X: str | Iterable[str]) -> Explanation | list[Explanation]:
        """How much each passage of a text speaks for its most probable label: of one text, or of each of several."""
        check_is_fitted(self)
        texts = [X] if isinstance(X, str) else X
        found = [most_probable for most_probable, *_ in self.run_.explain(texts, long=self.long)]
        return found[0] if isinstance(X, str) else found

    def save(self, path: str | Path) -> None:
        """Copy the run to a folder, in place of a run that is there; `load` and `prefixprop predict` read it."""
        check_is_fitted(self)
        check_may_start(RunDirectory(Path(path)), resume=False, overwrite=True)
        if Path(path).resolve() != self.run_.run_dir.resolve():
            with replacing_folder(path) as folder:
                ignored = shutil.ignore_patterns(*_NOT_COPIED)
                shutil.copytree(self.run_.run_dir, folder, ignore=ignored, dirs_exist_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> DocumentClassifier:
        """Open the directory of any finished run that classifies documents."""
        directory = RunDirectory(Path(path))
        directory.check_finished()
        settings = directory.read_settings()
        of_data = {*settings.source, "folds", "fold", *(f"max_{split}_documents" for split in SPLIT_NAMES)}
        values = {name: getattr(settings, name) for name in SETTINGS if name not in of_data}
        own = {name: values.pop(name) for name in cls._get_param_names() if name in SETTINGS}
        others = {name: value for name, value in values.items() if value != SETTINGS[name].default}
        return cls(**own, settings=others or None)._open(directory)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the run with its model card to the Hugging Face hub, without its predictions; returns the address.

        `DocumentClassifier.load(huggingface_hub.snapshot_download(repo_id))` opens it again.
        """
        from huggingface_hub import HfApi

        check_is_fitted(self)
        api = HfApi(token=token)
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        ignored = [pattern for name in _NOT_PUBLISHED for pattern in (name, f"{name}/**")]
        api.upload_folder(repo_id=repo.repo_id, folder_path=self.run_.run_dir, ignore_patterns=ignored)
        return str(repo)

    # --- how it is done -------------------------------------------------------------------------------------------

    def _run_settings(self) -> RunSettings:
        own = {name: getattr(self, name) for name in self._get_param_names() if name in SETTINGS}
        more = dict(self.settings or {})
        if twice := own.keys() & more.keys():
            raise SettingsError([f"settings: {sorted(twice)[0]!r} is a parameter of its own; give it as that."])
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in own.items()}
        return RunSettings(**values, **more)

    def _progress(self) -> contextlib.AbstractContextManager[Progress]:
        if not self.verbose:
            return contextlib.nullcontext(Progress())
        from rich.console import Console

        from prefixprop.cli.messages import TerminalProgress

        return TerminalProgress(Console(stderr=True))

    def _open(self, directory: RunDirectory) -> DocumentClassifier:
        from prefixprop.predict.loading import load_run

        self.run_: TrainedModel = load_run(directory.path)
        self.run_.check_reads_documents()
        if self.run_.several_labels:
            raise ValueError(
                f"{directory.path}: its documents can have several labels; open it with prefixprop.load_run."
            )
        stored = directory.classes
        self.classes_ = np.array(json.loads(stored.read_bytes()) if stored.is_file() else self.run_.label_names)
        self.metrics_, self.trust_ = directory.read_metrics(), self.run_.trust
        self.cv_results_ = _cv_results(self.metrics_, self.run_.settings)
        self.expected_accuracy_ = float(self.metrics_["dev"]["accuracy"])
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        if self.__sklearn_is_fitted__():
            raise TypeError("A fitted DocumentClassifier is not pickled; use save and load, which need no pickle.")
        state: dict[str, Any] = super().__getstate__()
        return state


class _TemporaryFolder:
    """A folder that is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="prefixprop-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _classes(y: Any) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The different labels, and the number of every document's."""
    problem = "Labels must all be texts or all be numbers, and none may be missing."
    if isinstance(y, (list, tuple)) and any(isinstance(label, float) and np.isnan(label) for label in y):
        raise ValueError(problem)  # NumPy would make a text of it
    if isinstance(y, Iterable) and any(isinstance(label, (list, tuple, set)) for label in y):
        raise ValueError("A document has one label here; for several, train with `prefixprop train`.")
    labels = column_or_1d(y, warn=True)
    try:
        assert_all_finite(labels)
        classes, indices = np.unique(labels, return_inverse=True)
    except TypeError:  # they cannot be compared
        raise ValueError(problem) from None
    check_classification_targets(labels)
    if len(classes) < 2:
        raise ValueError(f"All documents have the label {classes[0]}: a classifier cannot learn from one class.")
    return classes, indices


def _task(texts: list[str], labels: list[int], label_names: tuple[str, ...]) -> ClassificationTask:
    documents = [Document(str(index), *pair) for index, pair in enumerate(zip(texts, labels, strict=True))]
    packed = StoredDocuments.packed(documents)
    return ClassificationTask("documents", label_names, packed, packed[:0], packed[:0])


def _cv_results(metrics: Mapping[str, Any], settings: RunSettings) -> dict[str, Any]:
    tried = [({"model": settings.method}, metrics["dev"]["accuracy"])]
    if "baseline" in metrics:
        tried.append(({"model": metrics["baseline"]["model"]}, metrics["baseline"]["dev"]["accuracy"]))
    for rate in metrics.get("learning_rates", ()):
        tried.append(({"model": "readers alone", "learning_rate": rate["learning_rate"]}, rate["accuracy"]))
    scores = np.array([accuracy for _, accuracy in tried])
    ranks = 1 + (scores[:, None] < scores).sum(axis=1)
    return {"params": [params for params, _ in tried], "mean_test_score": scores, "rank_test_score": ranks}
