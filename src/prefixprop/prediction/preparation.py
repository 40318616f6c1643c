"""Preparing texts as the training texts of a run were prepared."""

from __future__ import annotations

from collections.abc import Callable

from prefixprop.tasks.hyperpartisan import clean_text

# Only what does no harm to a text of any origin. 20-newsgroups is not among them: what removes the headers of a post
# would remove the first paragraph of any other document. arXiv papers are cut far behind the limit of the models.
_PREPARATIONS: dict[str, Callable[[str], str]] = {"hyperpartisan": clean_text}


def preparation_of(task: str | None) -> Callable[[str], str]:
    """What to do with every text before a model that was trained on this task reads it."""
    return _PREPARATIONS.get(task or "", str)
