"""ArXiv papers and their subjects (He et al., 2019): `ccdv/arxiv-classification` of the hub, 11 classes.

As in the paper, the configuration is `no_ref`, which removes the subject where the text gives it away, and the first
30,000 characters of a paper are read. A folder of the same shape works in place of the hub, with its own classes.
"""

from __future__ import annotations

from pathlib import Path

from prefixprop.data.documents import ClassificationTask
from prefixprop.data.files import load_folder, load_hub_dataset
from prefixprop.data.labelled_rows import Columns, build_task
from prefixprop.data.rows import ENDINGS

HUB_NAME, HUB_CONFIG = "ccdv/arxiv-classification", "no_ref"
MAX_CHARACTERS = 30_000
_ENDINGS = ", ".join(ENDINGS)
_FOLDER_MUST_HOLD = (
    f"train, dev (or validation) and, if you have it, test, as files that end in one of {_ENDINGS}, with the columns "
    "text and label and, if you have them, label_name and id"
)


def load_arxiv(data_dir: Path | None = None) -> ClassificationTask:
    """Load the papers from the hub, or from the files `train`, `dev` (or `validation`) and `test` of a folder."""
    if data_dir is None:
        instead = f"pass --data-dir FOLDER with {_FOLDER_MUST_HOLD}"
        hub = load_hub_dataset(HUB_NAME, HUB_CONFIG, Columns(), instead=instead)
        return build_task("arxiv", hub.splits, hub.columns, prepare=beginning, remarks=hub.remarks)
    return load_folder("arxiv", data_dir, Columns(label_name="label_name"), _FOLDER_MUST_HOLD, prepare=beginning)


def beginning(text: str) -> str:
    """The part of a paper that is read."""
    return text[:MAX_CHARACTERS]
