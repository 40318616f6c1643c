"""Our attention beside Hugging Face's, in turns: a forward and a training step, time and peak memory.

    python benchmarks/attention.py --size base
    python benchmarks/attention.py --model modernbert --lengths 512 4096

The encoder is frozen, and a step goes back to the embeddings, as with a prefix. Without --lengths, these are the
cases of docs/performance.md. With them, every batch has the same number of tokens: if time grows linearly with the
length, the time of a token stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefixprop.attention import install

import measuring
from measuring import OURS, THEIRS


@dataclass(frozen=True)
class Case:
    """A batch of documents of one length."""

    batch: int
    length: int
    global_tokens: int = 9
    dropout: float = 0.0
    recorded: bool = False  # ours as a CUDA graph


CASES_ON_GPU = (
    Case(8, 4096),
    Case(8, 4096, dropout=0.1),
    Case(8, 4096, global_tokens=200),
    Case(32, 512),
    Case(32, 512, recorded=True),
    Case(2, 16384),
)
CASES_ON_CPU = (Case(1, 4096), Case(1, 512), Case(1, 4096, dropout=0.1))


def main() -> None:
    parser = measuring.make_parser(__doc__, repeats=5)
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help="tokens of a document")
    parser.add_argument("--tokens", type=int, help="tokens of a batch, if not those of the longest document")
    options = parser.parse_args()
    cases = CASES_ON_GPU if measuring.ON_GPU else CASES_ON_CPU
    global_tokens = 9 if options.model == "longformer" else 0
    if options.lengths:
        tokens = options.tokens or max(options.lengths)
        if any(tokens % length for length in options.lengths):
            parser.error(f"a batch of {tokens} tokens is not a whole number of documents at every length")
        cases = tuple(Case(tokens // length, length, global_tokens) for length in options.lengths)
    elif options.tokens or options.model != "longformer":
        parser.error("--tokens and --model modernbert need --lengths")
    results = [result for case in cases for result in measure(case, options)]
    measuring.publish(options, "attention", [shown(result) for result in results], results=results)


def measure(case: Case, options: Any) -> list[dict[str, Any]]:
    config = measuring.encoder_config(options.model, options.size, case.length, case.dropout)
    theirs = measuring.frozen_encoder(config).train(case.dropout > 0)
    models = {THEIRS: theirs, OURS: measuring.twin_of(theirs)}
    install(models[OURS], backend=options.backend)
    inputs = measuring.random_inputs(case.batch, case.length, case.global_tokens)
    facts = {"batch": case.batch, "length": case.length, "global": case.global_tokens, "dropout": case.dropout}
    compared = measuring.compare_passes(models, inputs, measuring.step_to_embeddings, options.repeats, case.recorded)
    return [facts | {"recorded": case.recorded} | result for result in compared]


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    ours, tokens = result["prefixprop"], result["batch"] * result["length"]
    return {
        "documents × tokens": f"{result['batch']} × {result['length']}" + ", recorded" * result["recorded"],
        "global": str(result["global"]),
        "dropout": f"{result['dropout']:g}",
        **measuring.compared_cells(result),
        "µs per token": f"{1e6 * ours.median / tokens:.3g}" if ours.median else "",
    }


if __name__ == "__main__":
    main()
