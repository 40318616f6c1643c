"""The model card of a run: its README.md, and that of its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from prefixprop.choices import SHOWN_METRICS
from prefixprop.evaluate import Trust
from prefixprop.settings.methods import ADAPTER
from prefixprop.settings.run_settings import RunSettings
from prefixprop.tuners.counting import ParameterCount

_PARTS = ("prefix", "gates", "alpha", "lora", "head")
_METRICS = (*SHOWN_METRICS, "documents")


def model_card(
    settings: RunSettings,
    metrics: Mapping[str, Any],
    count: ParameterCount,
    label_names: tuple[str, ...] | None,
    of_adapter: bool = False,
) -> str:
    """Markdown with a YAML head, as the Hugging Face hub reads it; of the run, or of an adapter's folder in it."""
    method = settings.method_row
    data = settings.task or settings.hub_dataset
    head = {
        "library_name": "peft" if of_adapter or method.trains == ADAPTER else "transformers",
        "pipeline_tag": None if label_names is None else "text-classification",
        "base_model": None if Path(settings.model).is_absolute() else settings.model,
        "tags": ["prefixprop", settings.method],
        "datasets": [data] if data else None,
    }
    head = {name: value for name, value in head.items() if value}  # the hub refuses paths and empty values
    fold = f"; the dev set is fold {settings.fold} of {settings.folds} of the training set" if settings.folds else ""
    sizes = ", ".join(f"{part} {size:,}" for part in _PARTS if (size := getattr(count, part)))
    share = f"{count.percent('trainable'):.3f} % of the encoder's {count.backbone:,}"
    trust = {name: value for name, value in metrics.get("trust", {}).items() if name != "test"}
    never = metrics.get("never_predicted")
    by_threshold = "a document gets every label whose probability reaches its threshold (`metrics.json`)."
    facts = {
        "Method": f"{_method(settings)}: trains {method.summary}.",
        "Base model": f"{settings.model}, up to {settings.max_length} tokens.",
        "Data": f"{settings.data_name}{fold}.",
        "Labels": by_threshold if "thresholds" in metrics else None,
        "Never predicted on the dev set or held-out documents": f"{', '.join(never)}." if never else None,
        "Trained parameters": f"{count.trainable:,}, {share}{f' ({sizes})' if sizes else ''}.",
        **(_mix(metrics) if settings.is_mix else _training(settings, metrics)),
        "Baseline": _baseline(settings, metrics),
        "Trust": Trust(**trust) if trust else None,
    }
    bullets = "\n".join(f"- **{name}:** {fact}" for name, fact in facts.items() if fact)
    return f"""---
{yaml.safe_dump(head, sort_keys=False).strip()}
---

# {settings.data_name}: {settings.method}

{bullets}

{_table(metrics)}

{_use(settings, label_names, of_adapter)}
"""


def _method(settings: RunSettings) -> str:
    parts = [str(settings.method)]
    if settings.is_prefix_method and settings.num_virtual_tokens is not None:
        parts.append(f"{settings.num_virtual_tokens} virtual tokens")
        if settings.kernel:
            parts.append(f"kernel {settings.kernel} with alpha {settings.alpha:g} ({settings.alpha_mode})")
        if settings.gate:
            parts.append("a gate per layer")
    if "lora_rank" in settings.method_row.options:
        parts.append(f"LoRA of rank {settings.lora_rank}")
    return ", ".join(parts)


def _training(settings: RunSettings, metrics: Mapping[str, Any]) -> dict[str, str]:
    kept = f"the checkpoint of epoch {metrics['best_epoch']} was the best on the dev set by {settings.metric}"
    if settings.keep == "last":
        kept += f", and the last, of epoch {metrics['epochs']}, is the one that was kept"
    how = f"batches of {settings.batch_size}, learning rate {settings.learning_rate:g}, seed {settings.seed}"
    return {
        "Training": f"{settings.epochs} epochs at most, {how}; {kept}.",
        "Calibration": f"temperature {metrics['temperature']:.4g}, fitted on the dev set.",
    }


def _mix(metrics: Mapping[str, Any]) -> dict[str, str]:
    headline = "average_precision" if "thresholds" in metrics else "accuracy"
    expected, mix = metrics[f"expected_{headline}"], metrics["mix"]
    weights = ", ".join(f"{part} {weight:.3g}" for part, weight in mix["weights"].items())
    chosen = ", ".join(f"{value:g} for {part}" for part, value in mix["chosen"].items())
    interval = f"(95 % interval {expected['low']:.4f} to {expected['high']:.4f})"
    judged = f"by cross-fitted answers to {expected['documents']:,} documents ({metrics['judged_on']})"
    which = "(a learning rate for readers, C for words). Its answers are calibrated."
    return {
        f"Expected {headline.replace('_', ' ')}": f"{expected[headline]:.4f} {interval}, {judged}.",
        "Mix": f"weights {weights}; chosen: {chosen} {which}",
    }


def _baseline(settings: RunSettings, metrics: Mapping[str, Any]) -> str | None:
    if not (baseline := metrics.get("baseline")):
        return None
    splits = [split for split in baseline if split != "model"]
    reached = " and ".join(f"{baseline[split][settings.metric]:.4f} on {split}" for split in splits)
    return f"{baseline['model']}, fitted on the same documents, has {settings.metric} {reached}."


def _table(metrics: Mapping[str, Any]) -> str:
    columns = [name for name in ("dev", "dev_calibrated", "test", "test_calibrated") if metrics.get(name)]
    lines = ["| metric | " + " | ".join(name.replace("_", ", ") for name in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for metric in _METRICS:
        if metric in metrics["dev"]:
            values = [metrics[name][metric] for name in columns]
            cells = [f"{value:,}" if metric == "documents" else f"{value:.4f}" for value in values]
            lines.append(f"| {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _use(settings: RunSettings, label_names: tuple[str, ...] | None, of_adapter: bool) -> str:
    if of_adapter:
        run = "This adapter is a part of a run of prefixprop, which has the tokenizer and the calibration too."
        return run + ("" if label_names is None else _with_peft(label_names, "."))
    if not settings.keep_weights:
        return """## Weights

This run did not keep its weights, so there is nothing to load. `prefixprop train --keep-weights` with the settings in
`config.yaml` makes them again."""
    if label_names is None:
        return "`prefixprop evaluate` takes this folder as it is."
    return f"""## How to use it

```python
from prefixprop import load_run

run = load_run(".")  # this folder
print(run.predict(["A long document ..."]))
```

`prefixprop predict` and `prefixprop evaluate` take this folder too.\
{_with_peft(label_names, f"./{ADAPTER}") if settings.method_row.trains == ADAPTER else ""}"""


def _with_peft(label_names: tuple[str, ...], folder: str) -> str:
    # With the dot the adapter is a folder and nothing else: without, peft would look for it on the hub too.
    return f"""

With peft alone, without calibration:

```python
import prefixprop
from peft import AutoPeftModelForSequenceClassification

labels = {list(label_names)!r}
model = AutoPeftModelForSequenceClassification.from_pretrained("{folder}", id2label=dict(enumerate(labels)))
```"""
