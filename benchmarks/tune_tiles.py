"""Which tile sizes suit the attention kernels on this GPU, for heads of one size.

    python benchmarks/tune_tiles.py local_rows --heads 12 --size 32 --dropout 0.1

Times forward (or backward, for the other two kernels) of one layer's attention in bfloat16 with each choice of tile
sizes and launch options, everything else as `prefixprop.attention.gpu.launch` has it, and prints them in the order of
their speed. A choice that the GPU has no room for is left out.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from triton.testing import do_bench

from prefixprop.attention.gpu import launch
from prefixprop.attention.gpu.dropout import draw_words
from prefixprop.attention.gpu.launch import Shape, Words
from prefixprop.attention.gpu.pattern import DevicePattern
from prefixprop.attention.pattern import AttentionPattern

Choice = dict[str, int]
# What the listed keys take (BLOCK_G) matters little.
CHOICES: dict[str, dict[str, tuple[int, ...]]] = {
    "local_rows": {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
    "local_rows_backward": {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64), "num_warps": (4, 8), "num_stages": (2, 3)},
    "band_keys": {"BLOCK_M": (32, 64), "BLOCK_N": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
}


def choices_of(kernel: str, present: Choice) -> Iterator[Choice]:
    """The present choice first, then all others."""
    yield present
    names = CHOICES[kernel]
    for values in itertools.product(*names.values()):
        choice = {**present, **dict(zip(names, values, strict=True))}
        if choice != present:
            yield choice


def build(options: argparse.Namespace) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of a layer's attention, with the first eight tokens and one more global."""
    heads, size, batch, length = options.heads, options.size, options.batch, options.length
    torch.manual_seed(0)
    mask = torch.zeros(batch, length, device="cuda")
    mask[:, :9] = 10000.0
    pattern = DevicePattern.of(AttentionPattern.from_mask(mask, 0), 0, heads)
    shape = Shape(heads, size, options.window // 2, 0, 0, options.dropout)
    words = Words(*draw_words((batch * heads * length, batch * length), pattern.arrivals, options.dropout))
    near, far = (torch.randn(batch * length, places * heads * size, device="cuda").bfloat16() for places in (3, 2))
    output, log_totals = launch.forward(near, far, pattern, words, shape)
    gradient = torch.randn_like(output)
    return (
        lambda: launch.forward(near, far, pattern, words, shape),
        lambda: launch.backward(gradient, output, log_totals, near, far, pattern, words, shape),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=CHOICES)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--size", type=int, default=64, help="of a head")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This needs an NVIDIA GPU and a PyTorch for CUDA; there is none here.", file=sys.stderr)
        return 2
    tiles = launch.TILES_WITH_DROPOUT if options.dropout else launch.TILES
    forward, backward = build(options)
    timed = forward if options.kernel == "local_rows" else backward
    found: list[tuple[float, Choice]] = []
    for choice in choices_of(options.kernel, tiles[options.kernel]):
        tiles[options.kernel] = choice
        launch._constants.cache_clear()
        try:
            timed()
            torch.cuda.synchronize()
        except Exception as error:  # whatever Triton raises where registers or shared memory do not suffice
            print(f"{choice}: {type(error).__name__}", file=sys.stderr)
            continue
        found.append((do_bench(timed, warmup=10, rep=60), choice))
    (present, _), *_ = found
    what = "forward" if timed is forward else "backward"
    table = Table("", what, "of the present", title=f"{options.kernel}, {options.heads} heads of {options.size}")
    for milliseconds, choice in sorted(found, key=lambda one: one[0]):
        told = ", ".join(f"{name} {value}" for name, value in choice.items())
        table.add_row(told, f"{milliseconds:.3f} ms", f"{milliseconds / present:.2f}")
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
