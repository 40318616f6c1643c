"""What the kernel decomposition costs: the embedded model with a kernel beside the same model without, in one run.

    python benchmarks/kernel_speed.py

Prints the time of a forward and of a training step (frozen backbone), as ratios to no kernel. Runs where the model
runs: on a GPU if there is one, else on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import get_peft_model
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from prefixprop import PrefixPropagationConfig
from prefixprop.benchmarking.timing import measure
from prefixprop.kernels import KERNELS
from prefixprop.models import load_default

SHAPES = ((4, 512), (1, 4096))
REPEATS = 7


def main() -> None:
    logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    factory, _ = load_default()
    console = Console()
    table = Table(title=f"Prefix-propagation with a kernel, j = 8, time over no kernel ({device})")
    table.add_column("kernel")
    for batch, length in SHAPES:
        table.add_column(f"forward {batch} × {length}", justify="right")
        table.add_column(f"step {batch} × {length}", justify="right")
    base: list[float] = []
    for kernel in (None, *sorted(KERNELS)):
        config = PrefixPropagationConfig(task_type="SEQ_CLS", kernel=kernel)
        model = get_peft_model(factory("SEQ_CLS", num_labels=2), config).eval().to(device)
        times = []
        for shape in SHAPES:
            tokens = torch.randint(5, 50_000, shape, device=device)
            labels = torch.zeros(shape[0], dtype=torch.long, device=device)

            def forward(model: Any = model, tokens: Any = tokens) -> None:
                with torch.no_grad():
                    model(input_ids=tokens)

            def step(model: Any = model, tokens: Any = tokens, labels: Any = labels) -> None:
                model(input_ids=tokens, labels=labels).loss.backward()

            times += [measure(run, device, REPEATS).median for run in (forward, step)]
        base = base or times
        cells = [f"{mine / other:.2f}" for mine, other in zip(times, base, strict=True)]
        if kernel is None:
            cells = [f"{1000 * mine:.0f} ms" for mine in times]
        table.add_row(str(kernel), *cells)
    console.print(table)


if __name__ == "__main__":
    main()
