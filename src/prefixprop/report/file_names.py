"""Names of files made of titles."""

from __future__ import annotations

import re


def file_name(title: str) -> str:
    """The title in small letters, digits and hyphens, which every system, LaTeX and HTML take.

    >>> file_name("Prefix-tuning, rbf kernel")
    'prefix-tuning-rbf-kernel'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "unnamed"
