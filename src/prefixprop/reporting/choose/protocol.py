"""By which protocol a run was judged: on dev or on a fold of train, and at its best or its last epoch."""

from __future__ import annotations

from prefixprop.settings.run_settings import RunSettings

PROTOCOL_SETTINGS = ("fold", "folds", "keep")


def is_on_fold(settings: RunSettings) -> bool:
    """Whether the run belongs to a cross-validation: it helps to choose, and is no result itself."""
    return settings.fold is not None


def keeps_last_epoch(settings: RunSettings) -> bool:
    """Whether the weights of the last epoch were judged, rather than those of the best on dev."""
    return settings.keep == "last"


def protocol_title(settings: RunSettings) -> str:
    """The name of the data, with the protocol where it is not the paper's.

    >>> protocol_title(RunSettings(task="arxiv", keep="last"))
    'arxiv, last epoch'
    """
    return settings.data_name + (", last epoch" if keeps_last_epoch(settings) else "")
