"""How the defaults for your documents compare: readers and their mix beside TF-IDF, a linear probe and LoRA.

    python benchmarks/defaults.py --elife DIR --newsgroups DIR --output defaults [--cells elife-200 …] [--methods …]

Documents of training sets only: 200, 2,000 and all of eLife and 20-newsgroups, 200 and all of Hyperpartisan. One run
of readers gives three columns: TF-IDF, readers and their mix, by cross-fitted answers on five folds. The linear probe
is logistic regression on the mean of the frozen encoder's last states, in the same folds. Other methods train a run
for each fold and keep their last epoch; `--folds 2` runs the first two folds only. `OUTPUT/table.jsonl` has a line
for each cell and method.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from prefixprop.backbones import find_backbone
from prefixprop.data import ClassificationTask, load_task
from prefixprop.data.splits import draw_sample, fold_numbers
from prefixprop.data.tokens import encode_documents, pad_documents
from prefixprop.evaluate import Part, cross_fit
from prefixprop.models.base_model import load_base_model
from prefixprop.progress import PrintedProgress
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train import train

from measuring import add_line

CELLS = {
    f"{task}-{count or 'all'}": (task, count)
    for task, counts in {
        "elife": (200, 2000, None),
        "newsgroups": (200, 2000, None),
        "hyperpartisan": (200, None),
    }.items()
    for count in counts
}
PROBE, READERS = "probe", "readers"
METHODS = (READERS, PROBE, "prefix-propagation+lora", "lora")
FOLDS = 5
C_VALUES = (10.0, 100.0, 1000.0)


def write_documents(task: str, count: int | None, data_dir: str | None, path: Path, draw: int) -> ClassificationTask:
    """Draw documents of the training set, and write them as a user's file."""
    whole = load_task(task, data_dir)
    assert isinstance(whole, ClassificationTask)
    documents = draw_sample(whole.train, count, seed=draw)
    rows = [{"id": each.id, "text": each.text, "label": whole.label_names[each.label]} for each in documents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ClassificationTask(task, whole.label_names, tuple(documents), (), ())


def settings_of(path: Path, model: str, **others: Any) -> RunSettings:
    others = {"method": READERS, **others}
    return RunSettings(train_files=(str(path),), model=model, keep_weights=False, **others)


def judge_readers(path: Path, model: str, folder: Path) -> dict[str, float]:
    metrics = train(settings_of(path, model), folder, overwrite=True, progress=PrintedProgress()).metrics
    parts = {"tfidf": metrics["baseline"], READERS: metrics["readers"], "mix": metrics}
    found = {
        f"{name}_{metric}": part["dev"][metric]
        for name, part in parts.items()
        for metric in ("accuracy", "nll", "ece")
    }
    return found | {"seconds": metrics["seconds"]}


def judge_folds(path: Path, model: str, folder: Path, method: str, folds: int) -> dict[str, float]:
    results = [
        train(
            settings_of(path, model, method=method, folds=FOLDS, fold=fold, keep="last", baseline=False),
            folder / str(fold),
            overwrite=True,
        ).metrics
        for fold in range(folds)
    ]
    return {
        "accuracy": float(np.mean([metrics["dev"]["accuracy"] for metrics in results])),
        "folds": folds,
        "seconds": float(np.sum([metrics["seconds"] for metrics in results])),
    }


@torch.no_grad()
def pooled_states(texts: list[str], model: str) -> np.ndarray:
    """The mean of each text's last states, scaled to length 1."""
    base = load_base_model(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder: Any = find_backbone(base.classifier(("a", "b"))).module.to(device).eval()
    found = []
    for start in range(0, len(texts), 16):
        ids = encode_documents(texts[start : start + 16], base.tokenizer, base.limit).input_ids
        inputs = {name: tensor.to(device) for name, tensor in pad_documents(ids, base.tokenizer.pad_token_id).items()}
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))[..., None]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            states = encoder(**inputs).last_hidden_state.float()
        found.append(((states * mask).sum(dim=1) / mask.sum(dim=1)).cpu().numpy())
    pooled = np.concatenate(found)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def judge_probe(task: ClassificationTask, model: str) -> dict[str, float]:
    labels, folds = np.array(task.train.labels), fold_numbers(task.name, task.train, FOLDS)
    started = time.monotonic()
    states = pooled_states(list(task.train.texts), model)
    logits = np.full((len(C_VALUES), len(labels), task.num_labels), -30.0)
    for index, c in enumerate(C_VALUES):
        for fold in range(FOLDS):
            probe = LogisticRegression(C=c, max_iter=1000).fit(states[folds != fold], labels[folds != fold])
            logits[np.ix_([index], np.flatnonzero(folds == fold), probe.classes_)] = probe.predict_log_proba(
                states[folds == fold]
            )
    fitted = cross_fit([Part(PROBE, C_VALUES, logits)], labels, folds)
    return {
        "accuracy": float((fitted.log_probabilities.argmax(axis=-1) == labels).mean()),
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elife", help="data directory of eLife")
    parser.add_argument("--newsgroups", help="data directory of 20-newsgroups")
    parser.add_argument("--output", type=Path, default=Path("defaults"))
    parser.add_argument("--model", default="longformer-mini-4096")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--draw", type=int, default=1, help="the seed with which documents are drawn")
    parser.add_argument("--folds", type=int, default=FOLDS, help="how many of the five folds other methods train")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for cell in given.cells:
        name, count = CELLS[cell]
        path = given.output / f"{cell}-{given.draw}.jsonl"
        task = write_documents(name, count, getattr(given, name, None), path, given.draw)
        for method in given.methods:
            folder = given.output / "runs" / f"{cell}-{method}-{given.model.rpartition('-')[2]}"
            if method == READERS:
                found = judge_readers(path, given.model, folder)
            elif method == PROBE:
                found = judge_probe(task, given.model)
            else:
                found = judge_folds(path, given.model, folder, method, given.folds)
            line = {"cell": cell, "draw": given.draw, "method": method, "model": given.model}
            line |= {"documents": len(task.train)} | found
            add_line(given.output / "table.jsonl", line)


if __name__ == "__main__":
    main()
