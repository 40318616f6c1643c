"""How much time and memory a run takes before its first step, for files that are larger than memory.

    python benchmarks/large_files.py --gigabytes 10
    python benchmarks/large_files.py --train-files elife/train.jsonl.xz

Writes documents made of Hyperpartisan's words (or takes --train-files), starts a run on them twice, each time in a
new process, and reads 20,000 documents as training would. The first start encodes them, the second one finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

WORDS_PER_DOCUMENT = 3000
READ = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--train-files", nargs="+", metavar="FILE", help="take these instead")
    parser.add_argument("--start", nargs="+", metavar="FILE", help=argparse.SUPPRESS)  # in the new process
    options = parser.parse_args()
    if options.start:
        print(json.dumps(measure_start(options.start)))
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        files = options.train_files or [str(write_documents(Path(folder) / "documents.jsonl", options.gigabytes))]
        size = sum(Path(file).stat().st_size for file in files) / 1e9
        environment = os.environ | {"PREFIXPROP_CACHE": str(Path(folder) / "cache")}
        table = Table(title=f"{size:.2f} GB of files", title_justify="left")
        for column in ("start", "documents", "tokens", "seconds", "memory, GiB"):
            table.add_column(column, justify="left" if column == "start" else "right")
        for name in ("first", "second"):
            command = [sys.executable, __file__, "--start", *files]
            answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(answer.splitlines()[-1])
            table.add_row(
                name,
                f"{found['documents']:,}",
                f"{found['tokens']:,}",
                f"{found['seconds']:.1f}",
                f"{found['memory'] / 2**30:.2f}",
            )
        Console().print(table)


def write_documents(path: Path, gigabytes: float) -> Path:
    """A file of this size, in which every document is different."""
    from prefixprop.data import load_task

    words = " ".join(document.text for document in load_task("hyperpartisan").train).split()
    draw = random.Random(0)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < gigabytes * 1e9:
            place = draw.randrange(len(words) - WORDS_PER_DOCUMENT)
            text = " ".join([str(written), *words[place : place + WORDS_PER_DOCUMENT]])
            written += file.write(json.dumps({"text": text, "label": draw.choice(["yes", "no"])}) + "\n")
    return path


def measure_start(files: list[str]) -> dict[str, float]:
    """Seconds until a run could take its first step, and the most memory until it has read its documents."""
    started = time.monotonic()
    from prefixprop.train import RunSettings
    from prefixprop.train.run import plan

    run = plan(RunSettings(train_files=tuple(files)))
    seconds = time.monotonic() - started
    documents = len(run.data.train_lengths)
    for place in random.Random(0).choices(range(documents), k=READ):
        run.data.train[place]
    return {
        "documents": documents,
        "tokens": sum(run.data.train_lengths),
        "seconds": seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    main()
