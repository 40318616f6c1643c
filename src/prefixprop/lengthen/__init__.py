"""Your own long encoder: a RoBERTa or BERT lengthened, then trained by masked language modelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.lengthen.run import lengthen_and_train
    from prefixprop.lengthen.settings import LengthenSettings

__all__ = ["LengthenSettings", "lengthen_and_train"]
__getattr__ = lazy_names(__name__, {"LengthenSettings": "settings", "lengthen_and_train": "run"})
