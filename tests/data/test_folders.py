from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.data.rows import check_folder, find_split_files


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_finds_the_file_of_a_split_under_any_of_its_names(tmp_path: Path) -> None:
    touch(tmp_path, "train.jsonl.gz", "validation.parquet", "training.jsonl", "README.md", "test.txt")
    assert find_split_files(tmp_path, "train") == [tmp_path / "train.jsonl.gz"]
    assert find_split_files(tmp_path, "dev", "validation") == [tmp_path / "validation.parquet"]
    assert find_split_files(tmp_path, "test") == []


def test_finds_all_parts_in_order(tmp_path: Path) -> None:
    names = [f"train-{part:05}-of-00003.parquet" for part in range(3)]
    touch(tmp_path, *reversed(names))
    assert find_split_files(tmp_path, "train") == [tmp_path / name for name in names]
    (tmp_path / names[1]).unlink()
    with pytest.raises(ValueError, match=r"train has 3 parts, but there are only train-00000.*, train-00002"):
        find_split_files(tmp_path, "train")


@pytest.mark.parametrize("other", ["dev.csv", "validation.jsonl", "dev-00000-of-00001.jsonl"])
def test_two_candidates_are_an_error(tmp_path: Path, other: str) -> None:
    touch(tmp_path, "dev.jsonl", other)
    with pytest.raises(ValueError, match=r"several files could be dev: .*keep one of them") as caught:
        find_split_files(tmp_path, "dev", "validation")
    assert other in str(caught.value) and "dev.jsonl" in str(caught.value)


def test_a_missing_folder(tmp_path: Path) -> None:
    check_folder(tmp_path)
    touch(tmp_path, "file")
    for name in ("absent", "file"):
        with pytest.raises(FileNotFoundError, match=f"{name}: there is no such folder"):
            check_folder(tmp_path / name)
