"""Build the task hybridqa, which row of a table holds the answer, from the public files of HybridQA.

    git clone https://github.com/wenhuchen/HybridQA
    git clone https://github.com/wenhuchen/WikiTables-WithLinks
    python recipes/build_hybridqa.py HybridQA WikiTables-WithLinks FOLDER
    prefixprop train --task hybridqa --data-dir FOLDER

HybridQA is under the MIT licence, and the passages are Wikipedia's (CC BY-SA). Of the dev questions those are taken
whose answer lies in exactly one row, as `dev.traced.json` says (the authors traced answers by string match): 2,102.
FOLDER gets `train`, `dev` and `test` as `.jsonl.xz`, in the fields of WikiHop; questions about a table stay together.
The split is that of `hybridqa-splits.json` beside this script.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPLITS = Path(__file__).with_name("hybridqa-splits.json")


def questions(hybridqa: Path, tables: Path) -> Iterator[dict[str, Any]]:
    """The questions whose answer lies in one row of their table."""
    for traced in _read(hybridqa / "released_data" / "dev.traced.json"):
        rows = {node[1][0] for node in traced["answer-node"]}
        if len(rows) != 1:
            continue
        table = _read(tables / "tables_tok" / f"{traced['table_id']}.json")
        passages = _read(tables / "request_tok" / f"{traced['table_id']}.json")
        candidates, (answer,) = _names(table["data"]), rows
        yield {
            "id": traced["question_id"],
            "table": traced["table_id"],
            "title": table["title"],
            "query": traced["question"],
            "candidates": candidates,
            "supports": [_support(table["header"], row, passages) for row in table["data"]],
            "answer": candidates[answer],
            "answer_index": answer,
            "answer_text": traced["answer-text"],
            "kinds": sorted({node[3] for node in traced["answer-node"]}),
        }


def _names(rows: list[Any]) -> list[str]:
    """Each row by its first two cells, all with numbers if two rows are alike."""
    names = [" | ".join(cell[0] for cell in row[:2]) for row in rows]
    return names if len(set(names)) == len(names) else [f"{number} | {name}" for number, name in enumerate(names, 1)]


def _support(header: list[Any], row: list[Any], passages: dict[str, str]) -> str:
    """The cells of a row, and the passages that they link to, each once."""
    cells = " ; ".join(f"{column[0]} : {cell[0]}" for column, cell in zip(header, row, strict=False))
    links = dict.fromkeys(link for cell in row for link in cell[1] if link in passages)
    return f"{cells} " + " ".join(passages[link] for link in links)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the task hybridqa from the public files of HybridQA.")
    parser.add_argument("hybridqa", type=Path, metavar="HybridQA", help="a clone of wenhuchen/HybridQA")
    parser.add_argument("tables", type=Path, metavar="WikiTables-WithLinks", help="a clone of that repository")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the three files go")
    arguments = parser.parse_args()
    splits = {name: set(ids) for name, ids in _read(SPLITS).items()}
    found: dict[str, list[dict[str, Any]]] = {"train": [], "dev": [], "test": []}
    for question in questions(arguments.hybridqa, arguments.tables):
        found[next((name for name, ids in splits.items() if question["id"] in ids), "train")].append(question)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, asked in found.items():
        path = arguments.folder / f"{name}.jsonl.xz"
        with lzma.open(path, "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(question, ensure_ascii=False) + "\n" for question in asked)
        print(f"{path}: {len(asked):,} questions")


if __name__ == "__main__":
    main()
