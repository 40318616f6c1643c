"""The 2,400 training articles of eLife that the evidence in `results/PROTOCOL.md` is trained on.

    python recipes/elife_sample.py ELIFE_FOLDER FOLDER

FOLDER gets these articles, drawn with seed 1, and eLife's dev and test set as they are.
"""

from __future__ import annotations

import lzma
import random
import shutil
import sys
from pathlib import Path

ARTICLES, SEED = 2400, 1


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with lzma.open(source / "train.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    with lzma.open(target / "train.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(lines[index] for index in sorted(random.Random(SEED).sample(range(len(lines)), ARTICLES)))
    for split in ("dev", "test"):
        shutil.copyfile(source / f"{split}.jsonl.xz", target / f"{split}.jsonl.xz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
