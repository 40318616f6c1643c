"""The loss of documents: against PyTorch's own, weighted as scikit-learn weighs, and of readers with other labels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_sample_weight

from prefixprop.train.losses import class_weights, document_loss, label_losses

LABELS = np.array([0, 0, 0, 0, 2, 2])
SETS = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]])


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    weights = class_weights(LABELS, 3)
    np.testing.assert_allclose(weights[LABELS], compute_sample_weight("balanced", LABELS))
    assert weights[1] == 1
    no, yes = class_weights(SETS, 3)
    for label in range(3):
        found = np.where(SETS[:, label] == 1, yes[label], no[label])
        np.testing.assert_allclose(found, compute_sample_weight("balanced", SETS[:, label]))


@pytest.mark.parametrize("labels", [LABELS, SETS], ids=["one", "several"])
@pytest.mark.parametrize("balanced", [False, True])
def test_a_step_is_the_weighted_mean_over_all_documents(labels: np.ndarray, balanced: bool) -> None:
    logits, given = torch.randn(6, 3, requires_grad=True), torch.from_numpy(labels)
    table = class_weights(labels, 3) if balanced else None
    found = document_loss(table)(SimpleNamespace(logits=logits), given)
    if labels.ndim == 1:
        each = F.cross_entropy(logits, given, reduction="none")
        factors = compute_sample_weight("balanced", labels)
    else:
        each = F.binary_cross_entropy_with_logits(logits, given.float(), reduction="none")
        factors = np.stack([compute_sample_weight("balanced", column) for column in labels.T], axis=1)
    expected = (each * torch.from_numpy(factors)).mean() if balanced else each.mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    # In two parts, each divided by the number of labels in the whole step, as the Trainer counts them.
    parts = [
        document_loss(table)(SimpleNamespace(logits=logits[rows]), given[rows], num_items_in_batch=given.numel())
        for rows in (slice(4), slice(4, 6))
    ]
    assert sum(parts).item() == pytest.approx(found.item(), rel=1e-5)


def test_readers_of_fewer_labels_have_no_loss_elsewhere() -> None:
    logits = torch.randn(2, 6, 3, requires_grad=True)
    absent = torch.zeros(2, 1, 3, dtype=torch.bool)
    absent[1, :, 2] = True
    tables = torch.from_numpy(np.stack([class_weights(SETS, 3)] * 2))
    labels = torch.from_numpy(SETS).expand(2, -1, -1)
    found = label_losses(logits.masked_fill(absent, -torch.inf), labels, tables)
    found.sum().backward()
    assert torch.isfinite(found).all() and (found[1, :, 2] == 0).all()
    assert torch.isfinite(logits.grad).all() and (logits.grad[1, :, 2] == 0).all()
    alone = label_losses(logits[0], labels[0], tables[0])
    torch.testing.assert_close(found[0], alone)
    torch.testing.assert_close(found[1, :, :2], label_losses(logits[1, :, :2], labels[1, :, :2], tables[1, :, :2]))
