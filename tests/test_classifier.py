"""The classifier as a scikit-learn estimator: its checks, its answers, its files."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from command_line import call
from prefixprop import DocumentClassifier, load_run
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.run_settings import SETTINGS
from prefixprop.train import RunSettings, train

from tiny_runs import LABEL_NAMES, finish_again, make_run, texts
from tiny_training import comparable, save_tiny_model, write_documents

TINY = "tiny"  # a folder in the working directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    save_tiny_model(folder / TINY, "roberta")
    write_documents(folder / "letters.jsonl", 40, seed=1)
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def letters() -> pd.DataFrame:
    return pd.read_json("letters.jsonl", lines=True)


def tfidf(**parameters: Any) -> DocumentClassifier:
    return DocumentClassifier(**{"model": TINY, "method": "tfidf"} | parameters)


# --- scikit-learn's checks ------------------------------------------------------------------------------------------


class OfNumbers(DocumentClassifier):
    """Spells rows of numbers as texts: scikit-learn's checks have no texts, and skip estimators of texts."""

    def fit(self, X: Any, y: Any) -> DocumentClassifier:
        return super().fit(self._spelled(X, reset=True), y)

    def predict_details(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict_details(self._spelled(X, reset=False))

    def _spelled(self, X: Any, reset: bool) -> list[str]:
        rows = validate_data(self, X, reset=reset)
        columns = range(rows.shape[1])
        # Words that similar rows share, and some that tell rows apart: copies of a text stay in one fold.
        return [
            " ".join(f"c{column}n{round(2 * row[column])} c{column}n{row[column]:.4f}" for column in columns)
            for row in rows
        ]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        assert tags.input_tags.string and not tags.input_tags.two_d_array
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, False, True
        return tags


EXPECTED_FAILURES = {
    "check_estimators_pickle": "a fitted classifier is saved without pickle, by save and load",
}


@parametrize_with_checks(
    [OfNumbers(model=TINY, method="tfidf")], expected_failed_checks=lambda _: EXPECTED_FAILURES, xfail_strict=True
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_parameters_are_settings_with_their_defaults() -> None:
    parameters = DocumentClassifier().get_params()
    own = {"settings", "long", "run_dir", "verbose"}
    assert {name: SETTINGS[name].default for name in parameters.keys() - own} == {
        name: value for name, value in parameters.items() if name not in own
    }


# --- fitting and answering ------------------------------------------------------------------------------------------


def test_a_fit_is_the_run_of_train(tmp_path: Path) -> None:
    table = letters()
    for method, others in (("tfidf", {}), ("head-only", {"keep": "last"})):
        values = {"model": TINY, "method": method, **({} if method == "tfidf" else {"epochs": 1})}
        files = RunSettings(train_files=("letters.jsonl",), **values, **others)
        expected = train(files, tmp_path / method).metrics
        found = DocumentClassifier(**values, settings=others).fit(table["text"], table["label"])
        assert comparable(found.metrics_) == comparable(expected)
        assert found.expected_accuracy_ == expected["dev"]["accuracy"]
        assert list(found.cv_results_["params"][0].values()) == [method]
        assert found.cv_results_["mean_test_score"].tolist() == [
            expected["dev"]["accuracy"],
            expected["baseline"]["dev"]["accuracy"],
        ]
        answers = load_run(tmp_path / method).predict(table["text"])
        np.testing.assert_array_equal(
            found.predict_proba(table["text"]), [list(one.probabilities.values()) for one in answers]
        )
        right = found.predict(table["text"]) == table["label"]
        assert found.score(table["text"], table["label"]) == right.mean()
        assert found.predict([]).tolist() == [] and found.predict_proba([]).shape == (0, 2)


def test_readers_show_every_learning_rate() -> None:
    table = letters()
    found = DocumentClassifier(model=TINY, method="readers", epochs=1).fit(table["text"], table["label"])
    params = found.cv_results_["params"]
    assert [row["model"].split()[0] for row in params[:2]] == ["readers", "TF-IDF"]
    assert [row["learning_rate"] for row in params[2:]] == [
        row["learning_rate"] for row in found.metrics_["learning_rates"]
    ]
    assert found.expected_accuracy_ == found.metrics_["expected_accuracy"]["accuracy"]
    assert min(found.cv_results_["rank_test_score"]) == 1


@pytest.mark.parametrize(
    ("texts_as", "labels_as", "classes"),
    [
        (list, list, ["art", "law"]),
        (np.array, pd.Series, ["art", "law"]),
        (pd.Series, lambda labels: pd.Series(labels, dtype="category"), ["art", "law"]),
        (tuple, lambda labels: np.array(labels) == "law", [False, True]),
        (list, lambda labels: [7 if label == "law" else -1 for label in labels], [-1, 7]),
    ],
    ids=["lists", "arrays", "pandas", "booleans", "numbers"],
)
def test_kinds_of_texts_and_labels(texts_as: Any, labels_as: Any, classes: list[Any], tmp_path: Path) -> None:
    table = letters()
    given, labels = texts_as(table["text"].tolist()), labels_as(table["label"].tolist())
    fitted = tfidf().fit(given, labels)
    fitted.save(tmp_path / "saved")
    for one in (fitted, DocumentClassifier.load(tmp_path / "saved")):
        assert one.classes_.tolist() == classes
        predicted = one.predict(given)
        assert set(predicted.tolist()) <= set(classes) and predicted.dtype.kind == np.array(classes).dtype.kind
        assert one.score(given, labels) > 0.8


def test_other_tools_of_scikit_learn() -> None:
    table = letters()
    shortened = make_pipeline(FunctionTransformer(lambda texts: texts.str[:60]), tfidf())
    assert shortened.fit(table["text"], table["label"]).score(table["text"], table["label"]) > 0.6
    assert len(cross_val_score(tfidf(), table["text"], table["label"], cv=2)) == 2
    search = GridSearchCV(tfidf(), {"max_length": np.array([8, 16])}, cv=2).fit(table["text"], table["label"])
    assert search.best_params_["max_length"] in (8, 16) and not hasattr(clone(search.best_estimator_), "run_")


@pytest.mark.parametrize(
    ("X", "y", "parameters", "message"),
    [
        ("w1 w2", ["a"], {}, "Give a list or a column of texts"),
        (pd.DataFrame({"one": ["w1", "w2"], "two": ["w3", "w4"]}), ["a", "b"], {}, "Give a list or a column"),
        ([("w1", "w2"), ("w3", "w4")], ["a", "b"], {}, "Document 0 .* one text per document; join the texts"),
        (["w1", None], ["a", "b"], {}, r"Document 1 \(from 0\) must hold text, got NoneType"),
        (["w1", "w2"], ["a", "a"], {}, "All documents have the label a: a classifier cannot learn from one class"),
        (["w1", "w2"], ["a"], {}, "inconsistent numbers of samples"),
        (["w1", "w2"], [0.5, 1.25], {}, "continuous"),
        (["w1", "w2", "w3"], ["a", "b", None], {}, "none may be missing"),
        (["w1", "w2", "w3"], [None, "a", "b"], {}, "none may be missing"),
        (["w1", "w2"], [["a", "b"], ["a"]], {}, "one label here; for several, train with `prefixprop train`"),
        (["w1", "w2"], pd.Series([["a", "b"], []]), {}, "one label here"),
        (["w1", "w2", "w3"], ["a", "b", np.nan], {}, "none may be missing"),
        (["w1", "w2", "w3"], pd.Series(["a", "b", np.nan]), {}, "contains NaN"),
        (["w1", "w2"], ["a", "b"], {"max_length": 1}, "--max-length: must be greater than or equal to 4, got 1"),
        (["w1", "w2"], ["a", "b"], {"long": "cut"}, "long='cut' is unknown; choose one of truncate, chunk-average"),
        (["w1", "w2"], ["a", "b"], {"settings": {"epoch": 2}}, r"no setting 'epoch' \(did you mean 'epochs'\?\)"),
        (["w1", "w2"], ["a", "b"], {"settings": {"epochs": 2}}, "'epochs' is a parameter of its own"),
        (["w1", "w2"], ["a", "b"], {"settings": {"task": "newsgroups"}}, "got --task and documents in memory"),
    ],
)
def test_what_cannot_be_fitted(X: Any, y: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tfidf(**parameters).fit(X, y)


def test_progress_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    table = letters()
    shortened = tfidf(method="readers", epochs=1, max_length=8, settings={"mix_baseline": "no"})
    with pytest.warns(UserWarning, match="longer than 8 tokens") as warned:
        shortened.fit(table["text"], table["label"])
    assert {warning.filename for warning in warned} == {__file__}, "where the package was called"
    assert capsys.readouterr().err == ""
    shortened.set_params(verbose=True).fit(table["text"], table["label"])
    told = capsys.readouterr().err
    assert "longer than 8 tokens" in told and "on held-out documents" in told
    with pytest.warns(
        UserWarning, match="cut there: .* of all tokens are not read; --long chunk-average reads the rest"
    ):
        details = shortened.predict_details(table["text"])
    assert [one.tokens for one in details] == [len(text.split()) for text in table["text"]]
    assert [one.tokens_read for one in details] == [min(8, one.tokens) for one in details]


# --- files ----------------------------------------------------------------------------------------------------------


def test_saving_where_something_is(tmp_path: Path) -> None:
    table = letters()
    fitted = tfidf(run_dir=tmp_path / "run").fit(table["text"], table["label"])
    fitted.save(tmp_path / "run")  # where it is already
    fitted.save(tmp_path / "copy")
    fitted.save(tmp_path / "copy")
    assert load_run(tmp_path / "copy").predict(["w0 w0"]) == load_run(tmp_path / "run").predict(["w0 w0"])
    fitted.fit(table["text"], table["label"])  # replaces the run
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    (tmp_path / "copy" / "notes.txt").write_text("keep me")
    for folder, problem in (("mine", "is not empty and not a run directory"), ("copy", "has a run, and notes.txt")):
        with pytest.raises(ValueError, match=problem):
            fitted.save(tmp_path / folder)
        assert (tmp_path / folder / "notes.txt").read_text() == "keep me"
    rows = "".join(json.dumps(row) + "\n" for row in letters().to_dict("records"))
    (tmp_path / "rows.jsonl").write_text(rows)
    out, _ = call("evaluate", tmp_path / "copy", "--input", tmp_path / "rows.jsonl", "--json")
    assert json.loads(out)["after"]["accuracy"] == fitted.score(table["text"], table["label"])
    _, told = call("evaluate", tmp_path / "copy", status=1)
    assert "trained on documents in memory, which are gone; give labelled documents with --input" in told


def test_any_run_is_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such run directory"):
        DocumentClassifier.load(tmp_path / "none")
    for method in ("prefix-propagation", "lora", "head-only", "fine-tuning"):
        run = make_run(tmp_path / method, method, "roberta", lora_rank=8 if method != "lora" else 4)
        opened = DocumentClassifier.load(run)
        assert opened.classes_.tolist() == list(LABEL_NAMES) and opened.method == method
        assert opened.settings.keys() - {"model_revision"} == ({"lora_rank"} if method == "lora" else set())
        expected = [one.label for one in load_run(run).predict(texts(5))]
        assert opened.predict(texts(5)).tolist() == expected
        assert opened.expected_accuracy_ == RunDirectory(run).read_metrics()["dev"]["accuracy"]
    finish_again(run, thresholds=[0.5] * 3)
    with pytest.raises(ValueError, match=r"its documents can have several labels; open it with prefixprop\.load_run"):
        DocumentClassifier.load(run)


def test_chunks_are_averaged_alike_everywhere(tmp_path: Path) -> None:
    run = make_run(tmp_path, "head-only", "roberta")
    long = [text + " w9" * 80 for text in texts(4)]
    rows = [{"id": str(number), "text": text, "label": "art"} for number, text in enumerate(long)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = DocumentClassifier.load(run).set_params(long="chunk-average").predict_proba(long)
    out, _ = call("predict", run, tmp_path / "long.jsonl", "--long", "chunk-average")
    predicted = [list(json.loads(line)["probabilities"].values()) for line in out.splitlines()]
    np.testing.assert_allclose(found, predicted, atol=1e-6)
    out, _ = call("evaluate", run, "--input", tmp_path / "long.jsonl", "--long", "chunk-average", "--json")
    assert json.loads(out)["after"]["nll"] == pytest.approx(-np.log(found[:, 0]).mean(), abs=1e-5)


def test_its_folder_goes_with_it_and_nothing_is_pickled() -> None:
    table = letters()
    fitted = tfidf().fit(table["text"], table["label"])
    run_dir = fitted.run_.run_dir
    for copying in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="use save and load"):
            copying(fitted)
    assert pickle.loads(pickle.dumps(clone(fitted))).get_params() == fitted.get_params()
    assert run_dir.is_dir()
    del fitted
    gc.collect()
    assert not run_dir.exists()


def test_pushing_to_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None) -> None:
            asked["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> huggingface_hub.RepoUrl:
            asked.update(options)
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

        def upload_folder(self, repo_id: str, folder_path: Path, ignore_patterns: list[str]) -> None:
            names = (path.relative_to(folder_path).as_posix() for path in folder_path.rglob("*") if path.is_file())
            asked["files"] = sorted(filter_repo_objects(names, ignore_patterns=ignore_patterns))
            for name in asked["files"]:
                target = tmp_path / repo_id / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((folder_path / name).read_bytes())

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with pytest.raises(NotFittedError):
        tfidf().push_to_hub("me/letters")
    table = letters()
    fitted = tfidf().fit(table["text"], table["label"])
    assert fitted.push_to_hub("me/letters", private=True, token="t") == "https://huggingface.co/me/letters"
    assert (asked["private"], asked["exist_ok"], asked["token"]) == (True, True, "t")
    assert "README.md" in asked["files"] and "mix/words/tfidf.safetensors" in asked["files"]
    assert not [name for name in asked["files"] if name.startswith(("predictions", "."))]
    opened = DocumentClassifier.load(tmp_path / "me" / "letters")
    np.testing.assert_array_equal(opened.predict_proba(table["text"]), fitted.predict_proba(table["text"]))
