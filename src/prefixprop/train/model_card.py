"""The model card of a run: its README.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from prefixprop.choices import EMBEDDED_MODELS
from prefixprop.settings.methods import ADAPTER, MODEL
from prefixprop.settings.run_settings import RunSettings
from prefixprop.tuners.counting import ParameterCount

_PARTS = ("prefix", "gates", "alpha", "lora", "head")
_MEASURES = ("accuracy", "micro_f1", "macro_precision", "macro_recall", "binary_f1", "ece", "nll", "documents")


def model_card(
    settings: RunSettings, base_name: str, metrics: Mapping[str, Any], count: ParameterCount, labels: int | None
) -> str:
    """Markdown with a YAML head, as the Hugging Face hub reads it."""
    method = settings.method_row
    head = {
        "library_name": "peft" if method.folder == ADAPTER else "transformers",
        "base_model": base_name,
        "tags": ["prefixprop", settings.method],
        "datasets": [settings.data_name],
    }
    kernel = (
        f", kernel {settings.kernel} with alpha {settings.alpha:g} ({settings.alpha_mode})" if settings.kernel else ""
    )
    gate = ", a gate per layer" if settings.gate else ""
    prefix = f", {settings.num_virtual_tokens} virtual tokens{kernel}{gate}" if settings.is_prefix_method else ""
    lora = f", LoRA of rank {settings.lora_rank}" if "lora_rank" in method.options else ""
    parts = ", ".join(f"{part} {size:,}" for part in _PARTS if (size := getattr(count, part)))
    fold = f"; dev is fold {settings.fold} of {settings.folds} of train, left out" if settings.folds else ""
    kept = f"the checkpoint of epoch {metrics['best_epoch']} was the best on dev by {settings.metric}"
    if settings.keep == "last":
        kept += f", and the last, of epoch {metrics['epochs']}, is the one that was kept"
    return f"""---
{yaml.safe_dump(head, sort_keys=False).strip()}
---

# {settings.data_name}: {settings.method}

- **Method:** {settings.method}{prefix}{lora}: trains {method.summary}.
- **Base model:** {base_name}, up to {settings.max_length} tokens.
- **Data:** {settings.data_name}{fold}.
- **Trained parameters:** {count.trainable:,}, {count.percent("trainable"):.3f} % of the encoder's \
{count.backbone:,} ({parts}).
- **Training:** {settings.epochs} epochs at most, batches of {settings.batch_size}, learning rate \
{settings.learning_rate:g}, seed {settings.seed}; {kept}.
- **Calibration:** temperature {metrics["temperature"]:.4g}, fitted on dev.{_floor(settings, metrics)}

{_table(metrics)}

{_use(settings, labels)}
"""


def _floor(settings: RunSettings, metrics: Mapping[str, Any]) -> str:
    floor = metrics.get("floor")
    if not floor:
        return ""
    reached = " and ".join(f"{floor[split][settings.metric]:.4f} on {split}" for split in floor if split != "model")
    return f"\n- **Floor:** {floor['model']}, fitted on the same documents, reaches {settings.metric} {reached}."


def _table(metrics: Mapping[str, Any]) -> str:
    columns = [name for name in ("dev", "dev_calibrated", "test", "test_calibrated") if metrics.get(name)]
    lines = ["| measure | " + " | ".join(name.replace("_", ", ") for name in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for measure in _MEASURES:
        if measure in metrics["dev"]:
            values = [metrics[name][measure] for name in columns]
            cells = [f"{value:,}" if measure == "documents" else f"{value:.4f}" for value in values]
            lines.append(f"| {measure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _use(settings: RunSettings, labels: int | None) -> str:
    if not settings.keep_weights:
        return """## Weights

The run was told not to keep its weights, so there is nothing to load here. `prefixprop train --keep-weights` with the
settings in `config.yaml` makes them again."""
    return f"""## How to load it

```python
{_loading(settings, labels)}
```

`prefixprop predict` and `prefixprop evaluate` take this folder as it is."""


def _loading(settings: RunSettings, labels: int | None) -> str:
    folder = settings.method_row.folder
    if folder == MODEL:
        module, name = ("prefixprop.models", "CandidateScorer")
        if not settings.answers_questions:
            module, name = ("transformers", "AutoModelForSequenceClassification")
        return f'from {module} import {name}\n\nmodel = {name}.from_pretrained("{folder}")'
    if folder == ADAPTER and not settings.answers_questions:
        name = "AutoPeftModelForSequenceClassification"
        # With the dot it is a folder and nothing else: without, peft would look for it on the hub too.
        loaded = f'model = {name}.from_pretrained("./{folder}", num_labels={labels})'
        return f"import prefixprop\nfrom peft import {name}\n\n{loaded}"
    imports, base = _base(settings, labels)
    if folder == ADAPTER:
        imports = ["from peft import PeftModel", *imports, "import prefixprop"]
        loaded = f'model = PeftModel.from_pretrained(model, "{folder}")'
    else:
        imports = ["from safetensors.torch import load_file", *imports]
        loaded = f'model.load_state_dict(load_file("{folder}/head.safetensors"), strict=False)'
    return "\n".join([*imports, "", *base, loaded])


def _base(settings: RunSettings, labels: int | None) -> tuple[list[str], list[str]]:
    """Imports and lines that build the base model, named `model`."""
    embedded = settings.model in EMBEDDED_MODELS
    if settings.answers_questions:
        imports = ["from prefixprop.models import candidate_scorer" + (", load_embedded" if embedded else "")]
        imports += ["from prefixprop.data import add_special_tokens"]
        if embedded:
            base = [f'factory, tokenizer = load_embedded("{settings.model}")']
        else:
            imports.append("from transformers import AutoTokenizer")
            base = [f'factory, tokenizer = "{settings.model}", AutoTokenizer.from_pretrained("{settings.model}")']
        arguments = f'factory, add_special_tokens(tokenizer), chunk_reduction="{settings.chunk_reduction}"'
        return imports, [*base, f"model = candidate_scorer({arguments})"]
    if embedded:
        base = [
            f'factory, tokenizer = load_embedded("{settings.model}")',
            f'model = factory("SEQ_CLS", num_labels={labels})',
        ]
        return ["from prefixprop.models import load_embedded"], base
    name = "AutoModelForSequenceClassification"
    return [f"from transformers import {name}"], [
        f'model = {name}.from_pretrained("{settings.model}", num_labels={labels})'
    ]
