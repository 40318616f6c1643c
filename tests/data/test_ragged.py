from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from prefixprop.data.ragged import RaggedArray


def test_pieces_of_any_length() -> None:
    array = RaggedArray(np.arange(6), np.array([0, 2, 2, 6]))
    assert [piece.tolist() for piece in array] == [[0, 1], [], [2, 3, 4, 5]]
    assert array[-1].tolist() == [2, 3, 4, 5] and array.lengths.tolist() == [2, 0, 4]
    with pytest.raises(IndexError):
        array[3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_walk_over_a_large_file_holds_little_of_it(tmp_path: Path) -> None:
    def held_megabytes() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) / 1024

    size, piece = 2**30, 2**20
    with (tmp_path / "values").open("wb") as file:
        file.truncate(size)  # takes no room on the disk
    array = RaggedArray(
        np.memmap(tmp_path / "values", dtype=np.uint8, mode="r"), np.arange(0, size + 1, piece, dtype=np.int64)
    )
    before = held_megabytes()
    most = max(held_megabytes() for values in array if values[0] == 0)
    assert most - before < 256
