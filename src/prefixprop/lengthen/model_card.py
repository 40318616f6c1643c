"""The model card of a long encoder: its README.md."""

from __future__ import annotations

from typing import Any

import yaml

from prefixprop.lengthen.encoder import LongEncoder
from prefixprop.lengthen.packing import MASKED


def model_card(record: dict[str, Any], encoder: LongEncoder) -> str:
    """Markdown with a YAML head, as the Hugging Face hub reads it."""
    settings = record["settings"]
    head = {
        "library_name": "transformers",
        "base_model": settings["model"],
        "pipeline_tag": "fill-mask",
        "tags": ["prefixprop", "longformer", "long documents"],
    }
    lines = record["history"]
    taught = (
        "\n- **[CLS]:** a global token. It also learnt the mean of the original's [CLS] over the pieces of a text "
        "that the original can read, and which words the text has; the cosine to the former was "
        f"{lines[-1]['cls_cosine']:.3f} at the end."
        if encoder.teacher is not None
        else "\n- **Global attention:** none in training, as Longformer's authors have it."
    ) + " Query, key and value were copied to their global twins at the end."
    frozen = " The embeddings of words were not changed." if settings["freeze_embeddings"] else ""
    remark = (
        "\nThe original has no masked-language-model head. The loss before training is that of a new one, which\n"
        "knows how often each token occurs, and nothing else.\n"
        if record["new_head"]
        else ""
    )
    lengths = list(lines[0]["held_out_bits"])
    table = [
        f"| step | tokens seen | {' | '.join(f'{length} tokens' for length in lengths)} |",
        f"| ---: | ---: |{' ---: |' * len(lengths)}",
    ]
    for line in lines:
        bits = " | ".join(f"{line['held_out_bits'][length]:.3f}" for length in lengths)
        table.append(f"| {line['step']:,} | {line['tokens']:,} | {bits} |")
    losses = "\n".join(table)
    return f"""---
{yaml.safe_dump(head, sort_keys=False).strip()}
---

# {settings["model"]} for {settings["max_length"]:,} tokens

A Longformer, made of {settings["model"]} with `prefixprop lengthen`: its positions were repeated up to
{settings["max_length"]:,} tokens, its windows are of {settings["attention_window"]}, and it was then trained by
masked language modelling.

- **Text:** {record["documents"]:,} documents; {record["tokens_of_text"]:,} tokens to train on, in
  {", ".join(settings["text"])}.
- **Training:** {record["steps"]:,} steps of {settings["batch_size"]} × {settings["max_length"]:,} tokens,
  {record["tokens_seen"]:,} tokens in all, {MASKED:.0%} of them masked; AdamW, rate {settings["learning_rate"]:g} with
  a linear warm-up and decay, {record["precision"]}, {record["seconds"] / 60:.1f} minutes.{frozen}{taught}

Cross-entropy of masked tokens in documents that were held out, in bits per token:

{losses}
{remark}
```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("./")  # this folder
model = AutoModelForSequenceClassification.from_pretrained("./", num_labels=2)
```

`prefixprop train --model FOLDER` tunes it. It has the limits and biases of {settings["model"]} and of the text.
"""
