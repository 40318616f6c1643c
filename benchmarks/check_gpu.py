"""Check the Triton backend on an NVIDIA GPU: its numbers, and that nothing waits or recompiles.

    python benchmarks/check_gpu.py [numbers|behaviour]

For each case, the error of Hugging Face's attention, of the plain PyTorch backend and of the Triton backend against
float64 (the plain backend in that type, on weights and inputs as the smaller type has them). Fails if Triton is more
than 1.2 times as far from it as Hugging Face in bfloat16 or float16, or further than 1e-5 of the scale in float32,
or if plain PyTorch makes no number. Frozen layers in one piece, with LoRA and kernels beside them, are compared with
plain PyTorch in Hugging Face's place, or with the type's own rounding if that is larger.
`make test` runs the same kernels on the CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console
from transformers.utils import logging

from gpu_behaviour import check_behaviour
from gpu_numbers import check_numbers

PARTS = {"numbers": check_numbers, "behaviour": check_behaviour}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this part")
    part = parser.parse_args().part
    wanted = [part] if part else list(PARTS)
    if not torch.cuda.is_available():
        print("This check needs an NVIDIA GPU and a PyTorch for CUDA; there is none here. Without one, `make test` "
              "runs the kernels in Triton's interpreter.", file=sys.stderr)  # fmt: skip
        return 2
    logging.set_verbosity_error()
    console = Console(width=160)
    fine = all([PARTS[part](console) for part in wanted])
    console.print("all fine" if fine else "FAILED: see above")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
