"""A head that is fitted before the first step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from prefixprop.training import head_start, train
from prefixprop.training.head_start import fit_linear

from tiny_training import comparable, tiny_settings


def cloud(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around a center for each class, in units of very different size."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=60 * classes)
    rows = draw.normal(size=(len(labels), 6)) + 3 * draw.normal(size=(classes, 6))[labels]
    return (rows * 10.0 ** draw.integers(-3, 3, size=6) + 5).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_fit_says_what_a_logistic_regression_says(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_start, "STRENGTHS", (0.1,))
    rows, labels = cloud(classes)
    weight, bias = fit_linear(rows, labels, classes)
    logits = rows.astype(np.float64) @ weight.T + bias
    found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    expected = LogisticRegression(C=0.1, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    np.testing.assert_allclose(found, expected, atol=2e-2)
    assert (found.argmax(axis=1) == labels).mean() > 0.9


def test_a_class_without_documents_is_not_said() -> None:
    rows, labels = cloud(3)
    weight, bias = fit_linear(rows, 2 * labels, 6)  # of six classes, 0, 2 and 4 have documents
    assert set((rows @ weight.T + bias).argmax(axis=1)) <= {0, 2, 4}
    weight, bias = fit_linear(rows, np.zeros_like(labels), 2)  # one class alone
    assert not weight.any() and bias[0] == bias[1]


@pytest.mark.parametrize("method", ["prefix-propagation", "fine-tuning"])
def test_a_run_begins_with_a_head_that_knows(method: str, tmp_path: Path) -> None:
    losses = []
    for start in (False, True):
        settings = tiny_settings(tmp_path, method=method, learning_rate=1e-9, epochs=1, dropout=0.0, head_start=start)
        run = train(settings, tmp_path / str(start)).run_dir
        losses.append(json.loads((run / "history.jsonl").read_text())["loss"])
    assert losses[1] < losses[0] - 0.05


def test_the_same_run_each_time(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, head_start=True)
    first, second = (train(settings, tmp_path / name).metrics for name in ("first", "second"))
    assert comparable(first) == comparable(second)
