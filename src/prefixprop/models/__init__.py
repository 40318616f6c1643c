"""Models to tune: a default that ships with the package, a way to lengthen your own, and candidate scoring."""

from __future__ import annotations

from prefixprop.models.candidate_scoring import (
    CandidateScorer,
    CandidateScoringConfig,
    adapt_candidate_scorer,
    candidate_scorer,
)
from prefixprop.models.embedded import load_default, load_embedded
from prefixprop.models.lengthen import lengthen

__all__ = [
    "CandidateScorer",
    "CandidateScoringConfig",
    "adapt_candidate_scorer",
    "candidate_scorer",
    "lengthen",
    "load_default",
    "load_embedded",
]
