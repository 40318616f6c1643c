"""The loss of documents, and the weights of classes in it.

With one label it is cross-entropy. Where a document can have several, every label is a yes/no question, and the loss
is the mean binary cross-entropy over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def class_weights(labels: NDArray[np.int64], num_labels: int) -> NDArray[np.float32]:
    """The weights of scikit-learn's `class_weight="balanced"`: [classes], or [2, labels] for no and yes.

    A class has documents / (classes · documents of the class), so that all classes weigh the same together. One
    without documents has 1.
    """
    if labels.ndim == 1:
        counts, classes = np.bincount(labels, minlength=num_labels), len(np.unique(labels))
    else:
        counts, classes = np.stack([len(labels) - labels.sum(axis=0), labels.sum(axis=0)]), 2
    balanced = len(labels) / (classes * np.maximum(counts, 1))
    known = counts > 0 if labels.ndim == 1 else (counts > 0).all(axis=0)
    return np.where(known, balanced, 1.0).astype(np.float32)


def label_losses(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of every document, or of every label of every document, in the shape of `labels`.

    `logits` are [..., classes]; `labels` are [...], or [..., classes] of 0 and 1. `weights` are those of
    `class_weights`, or several of them, one for each entry of the first dimension.
    """
    if labels.dim() < logits.dim():
        losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(labels)
        if weights is None:
            return losses
        return losses * (weights[labels] if weights.dim() == 1 else weights.gather(1, labels))
    # A reader of fewer labels than others has minus infinity where it has none, and no loss there.
    absent = logits == -torch.inf
    losses = F.binary_cross_entropy_with_logits(
        logits.masked_fill(absent, 0), labels.to(logits.dtype), reduction="none"
    )
    if weights is not None:
        no, yes = weights.unbind(-2)
        if weights.dim() == 3:
            no, yes = no[:, None], yes[:, None]
        losses = losses * torch.where(labels > 0, yes, no)
    return losses.masked_fill(absent, 0)


def document_loss(weights: NDArray[np.float32] | None = None) -> Callable[..., Tensor]:
    """The loss of a step for the Trainer, averaged over all documents of the step, or all of their labels.

    The model's own loss is a mean over a device's batch: documents of a smaller last batch would count for more.
    """
    table = None if weights is None else torch.from_numpy(weights)

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        nonlocal table
        table = None if table is None else table.to(labels.device)
        # The Trainer counts labels, of which there may be several for a document.
        count = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return label_losses(outputs.logits.float(), labels, table).sum() / count

    return loss
