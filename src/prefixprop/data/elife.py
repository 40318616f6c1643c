"""Research articles of eLife and their subjects: 18 classes, nine texts in ten longer than 4,096 tokens.

An article has exactly one subject and a body of at least 18,000 characters. Its text is the first 20,000 of them,
without title and abstract. `elife_articles` makes the files, and says which articles no training may read.
"""

from __future__ import annotations

from pathlib import Path

from prefixprop.data.documents import ClassificationTask
from prefixprop.data.elife_articles import REPOSITORY
from prefixprop.data.files import load_folder
from prefixprop.data.labelled_rows import Columns

_FOLDER_MUST_HOLD = (
    "train.jsonl.xz, dev.jsonl.xz and test.jsonl.xz, which `prefixprop build-elife CLONE FOLDER` makes from a clone "
    f"of {REPOSITORY} (git clone --depth 1)"
)


def load_elife(data_dir: Path | None = None) -> ClassificationTask:
    """Load the 8,104 training, 600 development and 800 test articles from a folder."""
    if data_dir is None:
        raise ValueError(f"The articles of eLife have to be built: pass --data-dir FOLDER with {_FOLDER_MUST_HOLD}.")
    return load_folder("elife", data_dir, Columns(id="id"), _FOLDER_MUST_HOLD)
