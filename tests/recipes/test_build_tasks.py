"""The scripts that build cuad and hybridqa, on files in the form of the public ones."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

import build_cuad
import build_hybridqa
from prefixprop.data import read_json_lines

RECIPES = Path(__file__).parents[2] / "recipes"


def test_contracts_and_their_clauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "CUAD_v1" / "full_contract_txt"
    texts.mkdir(parents=True)
    (texts / "MOELIS_CO_2014-EX-10.19.txt").write_text("An alliance.", encoding="utf-8")
    (texts / "LECLANCHE S.A. - AGREEMENT.txt").write_text("A battery.", encoding="utf-8")
    rows = [
        ["Filename", "Document Name-Answer", "Non-Compete", "Non-Compete-Answer", "Insurance-Answer"],
        ["MOELIS&CO_2014-EX-10.19.PDF'", "ALLIANCE", "[]", "No", "Yes"],
        ["LECLANCHÉ S.A. - AGREEMENT.pdf", "AGREEMENT", "['shall not']", "Yes", "Yes"],
    ]
    with (tmp_path / "CUAD_v1" / "master_clauses.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    monkeypatch.setattr(sys, "argv", ["build_cuad.py", str(tmp_path / "CUAD_v1"), str(tmp_path / "out")])
    build_cuad.main()
    first, second = read_json_lines(tmp_path / "out" / "contracts.jsonl.xz")
    assert first["text"] == "A battery." and first["labels"] == ["Non-Compete", "Insurance"]
    assert second["name"] == "MOELIS_CO_2014-EX-10.19" and second["labels"] == ["Insurance"]
    (tmp_path / "ids.txt").write_text(f"{second['id']} abc\n")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--ids", str(tmp_path / "ids.txt")])
    build_cuad.main()
    assert read_json_lines(tmp_path / "out" / "contracts.jsonl.xz") == [second]
    (texts / "stranger.txt").write_text("x")
    with pytest.raises(SystemExit, match=r"stranger\.txt: master_clauses\.csv has no row"):
        build_cuad.main()
    assert len((RECIPES / "cuad-ids.txt").read_text().split()) == 408


def test_rows_of_tables_and_their_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = json.loads(build_hybridqa.SPLITS.read_text())
    assert {name: len(ids) for name, ids in splits.items()} == {"dev": 187, "test": 395}
    node = ["Rome", [1, 0], "/wiki/Rome", "passage"]
    nodes = {
        splits["dev"][0]: [node],
        "new": [node, ["Italy", [1, 1], None, "table"]],
        "in two rows": [node, ["Oslo", [0, 0], None, "table"]],
    }
    of_all = {"question": "which ?", "table_id": "T_0", "answer-text": "x"}
    traced = [of_all | {"question_id": name, "answer-node": found} for name, found in nodes.items()]
    table = {
        "title": "Towns",
        "header": [["Name", []], ["Country", []], ["Note", []]],
        "data": [
            [["Oslo", ["/wiki/Oslo"]], ["Norway", []], ["", []]],
            [["Rome", ["/wiki/Rome", "/wiki/Gone"]], ["Italy", []], ["old", ["/wiki/Rome"]]],
        ],
    }
    for path, content in (
        ("H/released_data/dev.traced.json", traced),
        ("W/tables_tok/T_0.json", table),
        ("W/request_tok/T_0.json", {"/wiki/Oslo": "A fjord .", "/wiki/Rome": "Seven hills ."}),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(content))
    folders = [str(tmp_path / name) for name in ("H", "W", "out")]
    monkeypatch.setattr(sys, "argv", ["build_hybridqa.py", *folders])
    build_hybridqa.main()
    (dev,) = read_json_lines(tmp_path / "out" / "dev.jsonl.xz")
    assert dev["candidates"] == ["Oslo | Norway", "Rome | Italy"] and dev["answer"] == "Rome | Italy"
    assert dev["supports"][1] == "Name : Rome ; Country : Italy ; Note : old Seven hills ."
    (train,) = read_json_lines(tmp_path / "out" / "train.jsonl.xz")
    assert train["id"] == "new" and train["kinds"] == ["passage", "table"]
    assert read_json_lines(tmp_path / "out" / "test.jsonl.xz") == []
    assert build_hybridqa._names([[["a"], ["b"]], [["a"], ["b"]]]) == ["1 | a | b", "2 | a | b"]
