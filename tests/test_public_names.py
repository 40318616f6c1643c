"""Public names stay where they are: those of version 0.1, and those that the README and the docs mention."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# What every package of version 0.1 had in its `__all__`, and what its docs imported from elsewhere.
NAMES_OF_0_1 = {
    "prefixprop": """
        __version__ attention count_parameters load_run models ParameterCount PrefixPropagationConfig
        PrefixTuningConfig
    """,
    "prefixprop.attention": "AttentionPattern BACKENDS install longformer_self_attention uninstall",
    "prefixprop.backbones": "Backbone FAMILIES find_backbone SUPPORTED_MODEL_TYPES",
    "prefixprop.config": "PrefixPropagationConfig PrefixTuningConfig",
    "prefixprop.evaluate": """
        confusion_counts evaluate_predictions fit_temperature holm_correction paired_bootstrap paired_scores
        PredictionSet question_predictions read_predictions Reliability reliability SeedSummary SignificanceTest
        softmax summarise_seeds t_test Temperature write_predictions
    """,
    "prefixprop.sweep": """
        Axis Candidate Cell cell_progress CellProgress Engine Job JobEnd LocalEngine Outcome RayEngine
        read_plan run_job run_name run_sweep settle_finished SweepPlan SweepState
    """,
    "prefixprop.kernels": "Kernel register_kernel",
    "prefixprop.models": """
        adapt_candidate_scorer candidate_scorer CandidateScorer CandidateScoringConfig lengthen load_default
    """,
    "prefixprop.predict": "load_run Prediction PredictionOptions PredictionSummary TrainedModel",
    "prefixprop.report": """
        archive_runs ArchiveResult make_report plot_alpha plot_confusion plot_prefix_share plot_reliability
        prefix_share Report
    """,
    "prefixprop.data": """
        add_special_tokens CandidateCollator CandidatePartTooLong chunk_documents ChunkedDocuments
        ClassificationTask Document DocumentCollator draw_sample encode_documents EncodedDocuments
        iterate_json_lines leave_out_fold load_arxiv load_data load_files load_hub load_hyperpartisan
        load_newsgroups load_task load_wikihop pad_documents Question QuestionInput QuestionTask
        read_json_lines read_questions read_rows Row Split SPLIT_NAMES Task TASKS TaskSource WikiHopDataset
    """,
    "prefixprop.train": """
        AlphaLogger check_settings log_alpha override plan read_settings RunDirectory RunPlan RunResult
        RunSettings settings_to_yaml SettingsError train trained_alpha TrainingError
    """,
    "prefixprop.tuners": "PrefixPropagationModel PrefixTuningModel",
}


@pytest.mark.parametrize("package", NAMES_OF_0_1)
def test_names_of_0_1_are_there(package: str) -> None:
    module = importlib.import_module(package)
    lacking = [name for name in NAMES_OF_0_1[package].split() if not hasattr(module, name)]
    assert not lacking


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_the_docs_are_there(page: Path) -> None:
    for name in _mentioned(page.read_text(encoding="utf-8")):
        pkgutil.resolve_name(name)


def test_names_are_found_in_prose_and_in_code() -> None:
    found = _mentioned(PAGES[0].read_text(encoding="utf-8"))
    assert {"prefixprop.attention.install", "prefixprop.models.load_default"} <= found


def _mentioned(text: str) -> set[str]:
    """Dotted names, in prose and in code, and what code imports."""
    dotted = set(re.findall(r"\bprefixprop(?:\.[A-Za-z_]\w*)+", text))
    imports = re.findall(r"^from (prefixprop[\w.]*) import (.+)$", text, re.MULTILINE)
    return dotted | {f"{package}.{name.strip()}" for package, names in imports for name in names.split(",")}
