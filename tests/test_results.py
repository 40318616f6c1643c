"""The numbers of docs/results.md and of the README are those of `prefixprop report` and benchmarks/headline.py."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from prefixprop.report import make_report
from prefixprop.runs.find import find_runs

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import headline  # noqa: E402

RESULTS, README = ROOT / "docs" / "results.md", ROOT / "README.md"
PERFORMANCE, BENCH = ROOT / "docs" / "performance.md", ROOT / "results" / "bench"
NOTHING = "\u2014"
# What the documents call a row of the report: its method and its model.
NAMES = {
    ("fine-tuning", "embedded"): "fine-tuning",
    ("lora", "embedded"): "LoRA",
    ("prefix-tuning", "embedded"): "prefix-tuning",
    ("prefix-propagation", "embedded"): "prefix-propagation",
    ("prefix-propagation, exp kernel", "embedded"): "prefix-propagation, kernel exp",
    ("prefix-tuning", "embedded-512"): "prefix-tuning, 512 tokens",
    ("head-only", "embedded"): "head only",
}
DEV, FOLDS, NEWSGROUPS = "hyperpartisan", "hyperpartisan, last epoch", "newsgroups"
# Of a column in the documents: the table of the report, and its column there.
HYPERPARTISAN_COLUMNS = {
    "rate (dev)": (f"{DEV}, test: quality", "Learning rate"),
    "micro-F1 (dev)": (f"{DEV}, test: quality", "F1 micro, %"),
    "ECE (dev)": (f"{DEV}, test: calibration", "ECE"),
    "rate (folds)": (f"{FOLDS}, test: quality", "Learning rate"),
    "micro-F1 (folds)": (f"{FOLDS}, test: quality", "F1 micro, %"),
    "95 % interval (folds)": (f"{FOLDS}, test: quality", "F1 micro, 95 % interval"),
    "ECE (folds)": (f"{FOLDS}, test: calibration", "ECE"),
    "scaled ECE (folds)": (f"{FOLDS}, test: calibration", "ECE after scaling"),
}
README_COLUMNS = {
    "Hyperpartisan": (f"{FOLDS}, test: quality", "F1 micro, %"),
    "20-newsgroups": (f"{NEWSGROUPS}, test: quality", "F1 micro, %"),
}


def columns_of(task: str) -> dict[str, tuple[str, str]]:
    return {
        "rate": (f"{task}, test: quality", "Learning rate"),
        "dev micro-F1": (f"{task}, dev: quality", "F1 micro, %"),
        "test micro-F1": (f"{task}, test: quality", "F1 micro, %"),
        "95 % interval": (f"{task}, test: quality", "F1 micro, 95 % interval"),
        "ECE": (f"{task}, test: calibration", "ECE"),
        "scaled ECE": (f"{task}, test: calibration", "ECE after scaling"),
    }


Row = dict[str, str]


@cache
def reported(*folders: str) -> dict[str, list[Row]]:
    """The rows of all tables, by title."""
    report = make_report([ROOT / "results" / folder for folder in folders])
    return {
        table.title: [
            dict(zip((column.title for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows
        ]
        for table in report.measured
    }


def results(title: str) -> list[Row]:
    task = re.split("[,:]", title)[0]
    return reported(*((task,) if task == NEWSGROUPS else ("hyperpartisan", "hyperpartisan-clean")))[title]


def name_of(row: Row) -> str:
    return NAMES[row["Method"], row.get("Model", "embedded")]


def row_of(table: str, name: str) -> Row | None:
    found = [row for row in results(table) if name_of(row) == name]
    assert len(found) <= 1
    return found[0] if found else None


def documented(path: Path, first: str, number: int = 0) -> list[Row]:
    """The rows of one of the tables whose first column is called so."""
    lines = [
        [cell.strip("* ") for cell in line.strip("|").split("|")]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    start = [place for place, cells in enumerate(lines) if cells[0] == first][number]
    rows: list[Row] = []
    for cells in lines[start + 2 :]:
        if len(cells) == 1:
            break
        rows.append(dict(zip(lines[start], cells, strict=True)))
    return rows


@pytest.mark.parametrize(
    ("path", "number", "columns"),
    [
        (RESULTS, 0, HYPERPARTISAN_COLUMNS),
        (RESULTS, 1, columns_of(NEWSGROUPS)),
    ],
    ids=["hyperpartisan", "newsgroups"],
)
def test_documents_say_what_the_report_says(path: Path, number: int, columns: dict[str, tuple[str, str]]) -> None:
    rows = documented(path, "method", number)
    first, _ = next(iter(columns.values()))
    assert {row["method"] for row in rows} == {name_of(row) for row in results(first)}
    compared = 0
    for row in rows:
        for title, (table, column) in columns.items():
            if title not in row:
                continue
            found = row_of(table, row["method"])
            # The documents give some means without their deviation.
            expected = (NOTHING,) if found is None else (found[column], found[column].split(" \u00b1 ")[0])
            assert row[title] in expected, (row["method"], title)
            compared += 1
    assert compared >= 3 * len(rows)


def test_the_trials_of_other_settings() -> None:
    (rows,) = reported("ablations-hyperpartisan").values()
    found = {trial_of(row): row for row in rows}
    assert len(found) == len(rows)
    compared = set()
    for row in documented(RESULTS, "change"):
        for method in ("prefix-propagation", "prefix-tuning"):
            if row["change"] == "(none)":
                compared.add(method)
                assert row[method] == found[method]["F1 micro, %"]
            elif row[method]:
                compared.add(f"{method}, {row['change']}")
                assert row[method] == found[f"{method}, {row['change']}"]["Difference, points (95 % interval)"]
    assert compared == found.keys()


def trial_of(row: Row) -> str:
    """The method with its changes; the learning rate is one where it is not that of the others."""
    rate = row["Learning rate"]
    return row["Method"] if rate == "0.005" else f"{row['Method']}, learning rate {rate}"


def test_the_trials_on_newsgroups() -> None:
    rows = reported("ablations-newsgroups")["newsgroups, last epoch, test: quality"]
    means = [row["F1 micro, %"].split(" ")[0] for row in rows]
    assert {row["Seeds"] for row in rows} == {"3"} and len(rows) == 10
    assert f"ten such settings have {min(means)} to {max(means)} on test" in words(RESULTS)
    pairs = reported("ablations-newsgroups")["newsgroups, last epoch: all pairs"]
    wanted = ("prefix-propagation", "prefix-propagation, layout reference, pooling prefix", "test")
    (pair,) = (row for row in pairs if (row["Method"], row["Against"], row["Split"]) == wanted)
    assert pair["Micro-F1 difference, points"] == "+1.5"
    assert (pair["p, Welch's t"], pair["p, Welch's t, Holm"]) == ("0.001", "0.062")


@pytest.mark.parametrize(
    ("table", "split", "method", "said"),
    [
        (FOLDS, "test", "prefix-propagation", "+0.7 points on test (p = 0.039)"),
        (DEV, "test", "prefix-propagation", "\u22121.5 on test (p = 0.82)"),
        (FOLDS, "test", "fine-tuning", "by 2.6 points (p < 0.001)"),
        (FOLDS, "test", "lora", "LoRA by 1.8 (p = 0.006)"),
        (NEWSGROUPS, "test", "fine-tuning", "by 1.8 points (p = 0.002)"),
        (NEWSGROUPS, "test", "lora", "1.7 (p < 0.001)"),
        (NEWSGROUPS, "test", "prefix-propagation", "+0.5 points on test (p = 0.051)"),
        (NEWSGROUPS, "dev", "prefix-propagation", "+0.3 on dev (p = 0.043)"),
    ],
)
def test_p_values(table: str, split: str, method: str, said: str) -> None:
    assert said in words(RESULTS)
    row = against_tuning(table, split, method)
    difference, *_, p = re.findall(r"[\d.]+", said)
    assert row["Micro-F1 difference, points"].lstrip("+-") == difference
    assert float(row["p, Student's t"].removeprefix("< ")) == pytest.approx(
        float(p), abs=0.0005 if p < "0.1" else 0.005
    )


def against_tuning(table: str, split: str, method: str) -> Row:
    rows = results(f"{table}: better than prefix-tuning?")
    (row,) = (row for row in rows if (row["Method"], row["Split"]) == (method, split))
    return row


# What the documents call a sweep, by what chose and the task.
SWEEPS = {
    ("folds of train", "Hyperpartisan"): "hyperpartisan-clean",
    ("dev", "Hyperpartisan"): "hyperpartisan",
    ("dev", "20-newsgroups"): "newsgroups",
}
TOGETHER = {
    "both together": ("hyperpartisan-clean", "test"),
    "both together, with this row": ("hyperpartisan", "test"),
    "both together, on dev and test": ("hyperpartisan-clean", "dev and test"),
}


def test_the_headline() -> None:
    rows = documented(RESULTS, "what chooses")
    for row in rows:
        if row["task"] in TOGETHER:
            first, judged = TOGETHER[row["task"]]
            p_values = headline.together([headline.evidence(task, judged) for task in (first, "newsgroups")])
        else:
            found = headline.evidence(SWEEPS[row["what chooses"], row["task"]], row["judged on"])
            assert row["documents"] == f"{found.documents:,}"
            assert row["points"] == f"{found.points:+.1f}".replace("-", "\u2212")
            p_values = found.over_seeds, found.over_seeds_and_documents
        for column, p_value in zip(("p, seeds", "p, seeds and documents"), p_values, strict=True):
            assert row[column] == f"{p_value:.{len(row[column]) - 2}f}", row


def test_the_readme_says_what_the_results_say() -> None:
    rows = {row["method"]: row for row in documented(README, "method")}
    compared = 0
    for name, row in rows.items():
        for title, (table, column) in README_COLUMNS.items():
            if found := row_of(table, name):
                assert row[title] == found[column], (name, title)
                compared += 1
    assert compared == 12
    # Of the long encoder, docs/results.md has the methods as columns.
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("| `longformer-mini-4096` |"))
    names, scores = ([cell.strip() for cell in lines[at].split("|")[2:-1]] for at in (place - 2, place))
    elife = {re.sub("^prop", "prefix-prop", name): score for name, score in zip(names, scores, strict=True)}
    shown = {name: row["eLife"] for name, row in rows.items() if "\u00b1" in row["eLife"]}
    assert len(shown) == 5 and shown.items() <= elife.items()
    tests = {
        row["task"]: row
        for row in documented(RESULTS, "what chooses")
        if (row["what chooses"], row["judged on"]) in (("folds of train", "test"), ("dev", "test"))
        and "together" not in row["task"]
        and not row["points"].startswith("\u2212")
    }
    both = [tests[task] for task in ("Hyperpartisan", "20-newsgroups")]
    points = " and ".join(row["points"].lstrip("+") for row in both)
    p_values = " and ".join(row["p, seeds and documents"] for row in both)
    assert f"ahead by {points} points" in words(README) and f"p = {p_values} over" in words(README)
    assert "it is 1.5 points behind" in words(README) and "\u22121.5" in words(RESULTS)


def test_runs_of_a_changed_tree() -> None:
    folders = [folder for folder in sorted((ROOT / "results").iterdir()) if folder != BENCH]
    runs = [run for folder in folders for run in find_runs([folder]).runs]
    changed = sum(run.environment["git"]["changed"] for run in runs)
    assert f"**{changed} of the {len(runs)} runs record a changed tree**" in words(RESULTS)


def words(path: Path) -> str:
    return re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))


def test_the_attention_benchmark() -> None:
    results = json.loads((BENCH / "attention.json").read_text(encoding="utf-8"))["results"]
    lines, shorter = (
        [
            line
            for line in page.read_text(encoding="utf-8").splitlines()
            if re.match(r"\| \d+ \u00d7 .* (GiB|above) \|", line)
        ]
        for page in (PERFORMANCE, README)
    )
    assert len(lines) == len(results) / 2 > 0
    without_ratios = {re.sub(r" \| 9 \| 0(?= \|)|(?<=ms) \| [\d.]+\u00d7", "", line) for line in lines}
    assert len(shorter) == 3
    assert without_ratios.issuperset(shorter)
    for line, forward, step in zip(lines, results[::2], results[1::2], strict=True):
        size = f"{forward['batch']} \u00d7 {forward['length']}" + ", recorded" * forward["recorded"]
        case = f"| {size} | {forward['global']} | {forward['dropout']:g} |"
        shown = [
            f"{milliseconds(one, 'hugging_face')} \u2192 {milliseconds(one, 'prefixprop')} ms | "
            f"{one['ratio']:.1f}\u00d7"
            for one in (forward, step)
        ]
        memory = f"{step['hugging_face']['peak_gib']:.1f} \u2192 {step['prefixprop']['peak_gib']:.1f} GiB |"
        if forward["recorded"]:  # whose memory is not counted as it is used
            memory = "as above |"
        assert line == " ".join([case, *(f"{text} |" for text in shown), memory])


@pytest.mark.parametrize(("family", "file"), [("Longformer", "methods.json"), ("ModernBERT", "modernbert.json")])
def test_whatever_is_trained(family: str, file: str) -> None:
    names = {"prefix-propagation": "propagation", "\u2013 and LoRA": "propagation and LoRA"}
    results = json.loads((BENCH / file).read_text(encoding="utf-8"))["results"]
    found = {(each["method"], each["pass"]): each for each in results}
    rows = documented(PERFORMANCE, "trained")
    assert len(rows) == 7
    for row in rows:
        method = names.get(row["trained"], row["trained"].removeprefix("\u2013 "))
        forward, step = found[method, "forward"], found[method, "step"]
        whose = ("prefixprop",) if step["hugging_face"] is None else ("hugging_face", "prefixprop")
        forwards, steps = (
            " \u2192 ".join(milliseconds(one, who) for who in whose) + " ms" for one in (forward, step)
        )
        memory = " \u2192 ".join(f"{step[who]['peak_gib']:.1f}" for who in whose) + " GiB"
        shown = [row[f"{family}: {what}"] for what in ("forward", "step", "memory")]
        assert shown == [forwards, steps, memory], method


def milliseconds(result: dict, whose: str) -> str:
    value = 1000 * result[whose]["median_s"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def test_where_the_time_goes() -> None:
    files = {
        "Longformer, inference": "runtime.json",
        "Longformer, step": "steps.json",
        "ModernBERT, step": "steps-modernbert.json",
    }
    for column, file in files.items():
        record = json.loads((BENCH / file).read_text(encoding="utf-8"))
        times = record["profile"]["prefix-propagation"]["by_kind"]
        (measured,) = (each["median_s"] for each in record["results"] if each["method"] == "prefix-propagation")
        times |= {"all kernels": sum(times.values()), "measured": 1000 * measured}
        for row in documented(PERFORMANCE, "prefix-propagation, ms"):
            found = times.pop(row["prefix-propagation, ms"])
            assert row[column] == (f"{found:.1f}" if found >= 0.05 else ""), (column, row)
        assert not times


def test_the_run_time_table() -> None:
    results = json.loads((BENCH / "runtime.json").read_text(encoding="utf-8"))["results"]
    rows = {row["method"]: row for row in documented(PERFORMANCE, "method")}
    assert rows.keys() == {result["method"] for result in results}
    for result in results:
        row = rows[result["method"]]
        assert row["time of a batch"] == f"{1000 * result['median_s']:.1f} ms"
        if row["over no PEFT"]:
            low, high = (f"{100 * (result[end] - 1):.1f}" for end in ("low", "high"))
            assert row["over no PEFT"] == f"+{100 * (result['relative'] - 1):.1f} % ({low} to {high})"
