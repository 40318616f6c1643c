"""Documents of a run: what the Trainer reads is what `encode_documents` makes, from stored tokens; and their loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_sample_weight
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from prefixprop.data import ClassificationTask, Document, encode_documents, load_data
from prefixprop.data.cache import entries
from prefixprop.train import RunSettings
from prefixprop.train.kinds import DocumentClassification, class_weights, document_loss, label_losses

from tiny_training import load_run_task, tiny_settings, write_documents

TEXTS = [
    "",
    " ",
    "word",
    "one two three four five six seven eight nine",
    "naïve café\n" * 9,
    "a [SEP] b </s>",
    "x" * 50,
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bert() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=80, special_tokens=specials))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )


def read(dataset: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [item["input_ids"].tolist() for item in dataset]


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_trainer_reads_what_encode_documents_makes(side: str) -> None:
    tokenizer = bert()
    tokenizer.truncation_side = tokenizer.padding_side = side
    documents = tuple(Document(str(number), text, number % 2) for number, text in enumerate(TEXTS))
    task = ClassificationTask("toy", ("a", "b"), train=documents, dev=documents[:2], test=())
    for max_length in (4, 8, 64):
        data = DocumentClassification().encode(task, tokenizer, RunSettings(max_length=max_length))
        expected = encode_documents(TEXTS, tokenizer, max_length)
        batch = data.collator(list(data.train))  # type: ignore[call-overload]
        assert batch["attention_mask"][:, 0].all(), "padded on the right, as for predictions"
        assert read(data.train) == [ids.tolist() for ids in expected.input_ids]  # type: ignore[arg-type]
        assert data.train_lengths == tuple(map(len, expected.input_ids))
        unread = np.array(expected.tokens) - expected.tokens_read
        assert bool(data.unread) == unread.any()
        if data.unread:
            assert data.unread.startswith(f"{(unread > 0).sum()} of 7 training")
            share = (unread.sum() + unread[:2].sum()) / (sum(expected.tokens) + sum(expected.tokens[:2]))
            assert f"longer than {max_length} tokens and are cut there: {share:.0%} of all" in data.unread
        if side == "right":
            whole = tokenizer(TEXTS, truncation=True, max_length=max_length)["input_ids"]
            assert read(data.train) == whole  # type: ignore[arg-type]
    assert len(entries()) == 6  # train and dev, each of three lengths


def test_samples_folds_and_split_off_parts_read_their_own_documents(tmp_path: Path) -> None:
    tokenizer = bert()
    file = write_documents(tmp_path / "mine.jsonl", 40, seed=1)
    settings = RunSettings(train_files=(str(file),), method="lora", max_length=16)
    for changes in ({}, {"folds": 4, "fold": 0}, {"folds": 4, "fold": 3}, {"method": "readers"}):
        wanted = replace(settings, **changes)
        task = load_run_task(wanted)
        data = DocumentClassification().encode(task, tokenizer, wanted)
        assert isinstance(task, ClassificationTask)
        texts = [document.text for document in task.train]
        assert read(data.train) == [ids.tolist() for ids in encode_documents(texts, tokenizer, 16).input_ids]
        labels = [item["labels"] for item in data.train]  # type: ignore[attr-defined]
        assert labels == [document.label for document in task.train]
        # Whatever is split off, all of them find the same tokens.
        assert len([entry for entry in entries() if entry.path.name.startswith("tokens")]) == 1


def test_the_second_start_neither_parses_nor_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, settings = bert(), tiny_settings(tmp_path, max_length=16)
    first = DocumentClassification().encode(load_data(**settings.source), tokenizer, settings)
    monkeypatch.setattr("prefixprop.data.rows.parse_object", None)
    monkeypatch.setattr("prefixprop.data.tokens.contents", None)
    second = DocumentClassification().encode(load_data(**settings.source), tokenizer, settings)
    assert read(second.train) == read(first.train)


def test_documents_without_any_token_are_trained_on() -> None:
    tokenizer = bert()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    documents = tuple(Document(str(number), " " * number, number % 2) for number in range(4))
    task = ClassificationTask("toy", ("a", "b"), train=documents, dev=documents, test=documents)
    data = DocumentClassification().encode(task, tokenizer, RunSettings(max_length=8))
    assert data.train_lengths == (1, 1, 1, 1) and "4 of 4 dev documents are empty" in data.notes
    batch = data.collator(list(data.train))  # type: ignore[call-overload]
    assert batch["input_ids"].tolist() == [[tokenizer.pad_token_id]] * 4


@pytest.mark.parametrize("method", ["lora", "tfidf"])
def test_texts_in_pieces_are_told_where_the_encoder_reads_them(method: str) -> None:
    shredded = tuple(Document(str(number), "fourteen sixteen seventeen " * 3, number % 2) for number in range(9))
    task = ClassificationTask("toy", ("a", "b"), train=shredded, dev=shredded[:2], test=())
    data = DocumentClassification().encode(task, bert(), RunSettings(max_length=8, method=method))
    is_read = method != "tfidf"  # which counts the words of all of it
    assert any("tokens per word" in note for note in data.notes) == is_read
    assert bool(data.unread) == is_read
    if data.unread:
        assert data.unread.startswith("9 of 9 training, 2 of 2 dev documents are longer than 8 tokens")


# --- the loss -------------------------------------------------------------------------------------------------------


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
