"""A head that begins as the best linear one on the model as it is, before anything is trained.

A new head is random, so the first steps teach the rest of the model to serve a head that knows nothing. Linear
probing first, then training, spares it that (Kumar et al., ICLR 2022).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from prefixprop.attention.forwards import replace_forward
from prefixprop.training.trainer import RunTrainer

STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # of the fit to the documents, against small weights
HELD_OUT = 5  # one document in so many chooses the strength


def start_head(trainer: RunTrainer, documents: Dataset[Any], lengths: tuple[int, ...]) -> None:
    """Fit the head's last layer to what it reads of the documents."""
    last = last_layer(trainer.model)
    # The longest first: if the memory is too small, that shows at once.
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    undo = replace_forward(last, _as_it_is)  # so that the logits are what the layer reads
    try:
        with trainer.unrecorded():
            rows, labels = trainer.outputs(Subset(documents, order))
    finally:
        undo()
    weight, bias = fit_linear(rows.astype(np.float32), labels, last.out_features)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(weight))
        last.bias.copy_(torch.from_numpy(bias))


def last_layer(model: nn.Module) -> nn.Linear:
    """The layer that makes the logits: the last linear one that is trained."""
    found = [part for part in model.modules() if isinstance(part, nn.Linear) and part.weight.requires_grad]
    return found[-1]


def _as_it_is(original: Any, layer: nn.Module, rows: Tensor) -> Tensor:
    return rows


def fit_linear(
    rows: NDArray[np.float32], labels: NDArray[np.int64], classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights [classes, width] and biases of a logistic regression; a class without documents is improbable."""
    mean, deviation = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    scaled = (rows - mean) / deviation
    is_held_out = np.arange(len(labels)) % HELD_OUT == 0
    strength = STRENGTHS[0]
    if len(set(labels[~is_held_out])) > 1:
        scores = [
            _regression(scaled[~is_held_out], labels[~is_held_out], each).score(
                scaled[is_held_out], labels[is_held_out]
            )
            for each in STRENGTHS
        ]
        strength = STRENGTHS[int(np.argmax(scores))]
    weight = np.zeros((classes, rows.shape[1]), dtype=np.float32)
    bias = np.full(classes, -np.log(len(labels)), dtype=np.float32)
    if len(set(labels)) > 1:
        fitted = _regression(scaled, labels, strength)
        two = fitted.coef_.shape[0] == 1  # of two classes sklearn has the difference
        found = np.concatenate([-fitted.coef_, fitted.coef_]) / 2 if two else fitted.coef_
        offset = np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2 if two else fitted.intercept_
        weight[fitted.classes_] = found / deviation
        bias[fitted.classes_] = offset - (found / deviation) @ mean
    return weight, bias


def _regression(rows: NDArray[np.float32], labels: NDArray[np.int64], strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=1000).fit(rows, labels)
