"""Arrays of different lengths behind each other in one long array, which may be a file larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# How much of a memory map stays with the process. The system counts every page that was ever read as the process's
# memory until it is given back.
_HELD_BYTES = 2**27
_BYTES_AROUND = 2**17  # the system maps pages around the one that is read


class RaggedArray(Sequence[NDArray[Any]]):
    """`array[i]` is a copy of `values[offsets[i]:offsets[i + 1]]`; `values` and `offsets` may be memory maps."""

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.values, self.offsets = values, offsets
        self._touched = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> NDArray[Any]:  # type: ignore[override]
        place = range(len(self))[index]
        piece = np.array(self.values[self.offsets[place] : self.offsets[place + 1]])
        self._touched += piece.nbytes + _BYTES_AROUND
        if self._touched > _HELD_BYTES:
            self.release()
        return piece

    def release(self) -> None:
        """Give the pages that were read back to the system, which reads them again if they are asked for."""
        pages = self.values.base
        if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
        self._touched = 0
