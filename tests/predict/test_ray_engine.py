"""`prefixprop predict --engine ray` on a Ray cluster of two workers, one of which is killed, or the whole command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import prefixprop
from command_line import call, wait_until
from prefixprop.predict import ray_engine, trained_model
from prefixprop.predict.outputs import locked

from tiny_runs import make_run, texts, write_rows

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

# The first worker that reads a document with this word is killed; with `stall`, all wait after the first part.
FATAL = "w17"
DEADLY = f"""
import os, signal, time
from pathlib import Path
from prefixprop.predict import trained_model
predict_with_each = trained_model.predict_with_each

def deadly(runs, texts, options):
    if any("{FATAL}" in text for text in texts):
        with open("deaths", "a") as file:
            file.write("x")
        if Path("deaths").stat().st_size <= int(Path("most").read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
    while Path("stall").exists() and list(Path("out").rglob("*.parquet")):
        time.sleep(0.05)
    return predict_with_each(runs, texts, options)

trained_model.predict_with_each = deadly
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    sources = str(Path(prefixprop.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [sources, os.environ.get("PYTHONPATH")])))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        node = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
        yield cluster.address
        cluster.shutdown()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ray")
    return [make_run(folder / name, family="roberta", weights=seed) for seed, name in enumerate("ab")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With tables of 13, 9 and 4 documents: JSON lines with ids, Parquet with ids, JSON lines without."""
    import pyarrow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # what --import does to this process is undone
    monkeypatch.setattr(trained_model, "predict_with_each", trained_model.predict_with_each)
    monkeypatch.delitem(sys.modules, "deadly", raising=False)
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "most").write_text("1")
    (tmp_path / "in" / "more").mkdir(parents=True)
    write_rows(tmp_path / "in" / "a.jsonl", [*texts(10, seed=1), "", "w4 " * 60, FATAL])
    table = pyarrow.table({"id": [f"p{number}" for number in range(9)], "text": texts(9, seed=2)})
    parquet.write_table(table, tmp_path / "in" / "more" / "b.parquet")
    rows = [json.dumps({"text": text}) + "\n" for text in texts(4, seed=3)]
    (tmp_path / "in" / "more" / "c.jsonl").write_text("".join(rows))
    return tmp_path


def arguments(runs: list[Path], address: str, *more: object) -> list[str]:
    given = ["--engine", "ray", "--ray-address", address, "--part-rows", 5, "--workers", 2, "--output", "out", *more]
    return ["predict", *map(str, (*runs, "in", *given))]


def parts() -> dict[str, float]:
    """The files of the output, with the times when they were written."""
    return {path.relative_to("out").as_posix(): path.stat().st_mtime for path in sorted(Path("out").rglob("*"))}


def check_answers(runs: list[Path]) -> None:
    """The parts have what the local engine says of each file, in its order."""
    written = list(parts())
    assert written == [
        "_origin.json", "a.jsonl-000000.parquet", "a.jsonl-000001.parquet", "a.jsonl-000002.parquet", "more",
        "more/b.parquet-000000.parquet", "more/b.parquet-000001.parquet", "more/c.jsonl-000000.parquet",
    ]  # fmt: skip
    for name in ("a.jsonl", "more/b.parquet", "more/c.jsonl"):
        expected = [json.loads(line) for line in call("predict", *runs, Path("in", name))[0].splitlines()]
        files = sorted(Path("out").glob(f"{name}-*.parquet"))
        found = [row for file in files for row in parquet.read_table(file).to_pylist()]
        for row, line in zip(found, expected, strict=True):
            assert list(row) == list(line) and flat(row) == pytest.approx(flat(line), abs=1e-5)


def flat(record: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


def test_a_killed_worker_loses_nothing_and_doubles_nothing(folder: Path, runs: list[Path], address: str) -> None:
    _, told = call("--import", "deadly", *arguments(runs, address))
    assert Path("deaths").stat().st_size == 2, "a worker was to be killed once"
    assert "26 documents in out, 26 of them answered by this call" in told and "documents/s" in told
    assert "of all tokens are not read" in told
    check_answers(runs)
    before = parts()

    Path("out", "more", "b.parquet-000001.parquet").unlink()
    write_rows(Path("in", "d.jsonl"), texts(3))  # the input has grown
    _, told = call(*arguments(runs, address))
    assert "29 documents in out, 7 of them answered by this call" in told
    after = parts()
    kept = before.keys() - {"_origin.json", "more", "more/b.parquet-000001.parquet"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after.keys() - before.keys() == {"d.jsonl-000000.parquet"}


def test_a_killed_command_goes_on_and_refuses_other_documents(folder: Path, runs: list[Path], address: str) -> None:
    Path("stall").touch()
    command = [sys.executable, "-m", "prefixprop", "--import", "deadly", *arguments(runs[:1], address)]
    Path("most").write_text("0")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_until(lambda: list(Path("out").rglob("*.parquet")), 120)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = {name: time for name, time in parts().items() if name.endswith(".parquet")}
    Path("stall").unlink()
    assert 1 <= len(before) < 6
    with locked(Path("out")):
        assert "another process is writing this folder" in call(*arguments(runs[:1], address), status=1)[1]
    call(*arguments(runs[:1], address))
    assert before.items() <= parts().items(), "what was finished is not written again"
    check_answers(runs[:1])

    before = parts()
    for more, message in (
        (("--long", "chunk-average"), "--long was truncate, now chunk-average"),
        (("--part-rows", 6), "--part-rows was 5, now 6"),
    ):
        assert message in call(*arguments(runs[:1], address, *more), status=1)[1]
    assert "the run was run, now " in call(*arguments(runs, address), status=1)[1]
    write_rows(Path("in", "a.jsonl"), texts(13, seed=5))
    told = call(*arguments(runs[:1], address), status=1)[1]
    assert "another input, whose a.jsonl was different" in told and len(told.splitlines()) == 1
    assert parts() == before


def test_faults_are_sentences(folder: Path, runs: list[Path], address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = call(*arguments(runs, address, "--text-column", "body"), status=1)
    assert "there is no column 'body'; the columns are" in told and len(told.splitlines()) == 1
    with Path("in", "a.jsonl").open("a") as file:
        file.write('{"id": \n')
    _, told = call(*arguments(runs, address), status=1)
    assert f"Error: {folder / 'in' / 'a.jsonl'}:14: broken JSON" in told and not Path("out").exists()
    Path("in", "a.jsonl").unlink()
    shutil.move(Path("in", "more"), "rest")
    write_rows(Path("in", "a.jsonl"), [FATAL])
    Path("most").write_text("100")
    monkeypatch.setattr(ray_engine, "_MOST_DEATHS", 2)
    _, told = call("--import", "deadly", *arguments(runs, address), status=1)
    assert "2 workers were killed at the same work" in told and Path("deaths").stat().st_size == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("in", "--output", "out", "--resume"), "--resume would change nothing here"),
        (("in", "--output", "out", "--format", "csv"), "--engine ray writes Parquet"),
        (("in",), "give its name with --output"),
        (("nowhere", "--output", "out"), "there is no such file or folder"),
        (("in/more", "--output", "in/more/out"), "the output is inside the input"),
        (("in", "--output", "deadly.py"), "this is a file"),
        (("in", "--output", "in2"), "_origin.json, which records what made it, is missing"),
        (("empty", "--output", "out"), "needs a folder with tables in it"),
        (("in", "--output", "out", "--ray-address", "nowhere"), "expected HOST:PORT"),
    ],
)
def test_wrong_choices(folder: Path, runs: list[Path], given: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    shutil.copytree("in", "in2")
    assert message in call("predict", *runs, *given, "--engine", "ray", status=1)[1]
    assert not Path("out").exists()


def test_without_ray(folder: Path, runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    _, told = call("predict", *runs, "in", "--output", "out", "--engine", "ray", status=1)
    assert "Predictions with --engine ray need the package ray: pip install 'prefixprop[ray]'" in told


@pytest.mark.parametrize(
    ("nodes", "wanted", "room"),
    [
        ([{"CPU": 2}], 2, (2, 1, 0)),
        ([{"CPU": 2}], None, (1, 2, 0)),
        ([{"CPU": 16}, {"CPU": 6}], None, (5, 4, 0)),
        ([{"CPU": 3}, {"CPU": 3}], 3, (3, 1, 0)),
        ([{"CPU": 16, "GPU": 8}, {"CPU": 16, "GPU": 8}], None, (16, 1, 1)),
        ([{"CPU": 16, "GPU": 8}], 3, (3, 1, 1)),
        ([{"CPU": 16, "GPU": 8}], 9, "--workers 9: the cluster has 8 GPUs, and every worker takes one"),
        ([{"memory": 1.0}], None, "--workers 1: the cluster has 0 cores"),
    ],
)
def test_room(nodes: list[dict[str, float]], wanted: int | None, room: tuple[int, int, int] | str) -> None:
    with pytest.raises(ValueError, match=room) if isinstance(room, str) else nullcontext():
        assert ray_engine._room(nodes, wanted) == room
