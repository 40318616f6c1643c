"""Build the task cuad from the public files of CUAD v1 (The Atticus Project, CC BY 4.0).

    python recipes/build_cuad.py CUAD_v1 FOLDER
    prefixprop train --task cuad --data-dir FOLDER --method readers

CUAD_v1 is the folder of CUAD_v1.zip (https://www.atticusprojectai.org/cuad): it holds `full_contract_txt`, with a
text file for each of the 510 contracts, and `master_clauses.csv`, with a column of yes and no for each of 33 clauses.
FOLDER gets `contracts.jsonl.xz`, a line for each contract: id, name, text, labels.

`--ids recipes/cuad-ids.txt` takes the 408 contracts that docs/several-labels.md was measured on.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import lzma
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

ANSWER, YES, NO = "-Answer", "Yes", "No"


def contracts(folder: Path) -> Iterator[dict[str, object]]:
    """The contracts of the folder CUAD_v1, by name."""
    with (folder / "master_clauses.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {_key(row["Filename"]): row for row in csv.DictReader(file)}
    answers = [name for name in next(iter(rows.values())) if name.endswith(ANSWER)]
    # The other clauses, such as the governing law, have texts as answers.
    clauses = [name for name in answers if {row[name] for row in rows.values()} <= {YES, NO, ""}]
    for path in sorted((folder / "full_contract_txt").glob("*.txt")):
        row = rows.get(_key(path.stem))
        if row is None:
            raise SystemExit(f"{path}: master_clauses.csv has no row for this contract.")
        yield {
            "id": hashlib.sha1(path.name.encode()).hexdigest()[:12],
            "name": path.stem,
            "text": path.read_text(encoding="utf-8"),
            "labels": [name.removesuffix(ANSWER) for name in clauses if row[name] == YES],
        }


def _key(name: str) -> str:
    """The letters and digits of a name, by which texts and rows are matched: the files replace other characters."""
    plain = unicodedata.normalize("NFKD", re.sub(r"\.pdf\W*$", "", name, flags=re.IGNORECASE))
    return re.sub(r"[^a-z0-9]", "", plain.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the task cuad from the public files of CUAD v1.")
    parser.add_argument("cuad", type=Path, metavar="CUAD_v1", help="the unpacked folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where contracts.jsonl.xz goes")
    parser.add_argument("--ids", type=Path, help="a file with the ids of the contracts to take; all if left out")
    arguments = parser.parse_args()
    wanted = None if arguments.ids is None else set(arguments.ids.read_text(encoding="utf-8").split())
    found = [one for one in contracts(arguments.cuad) if wanted is None or one["id"] in wanted]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "contracts.jsonl.xz"
    with lzma.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in found)
    print(f"{path}: {len(found):,} contracts")


if __name__ == "__main__":
    main()
