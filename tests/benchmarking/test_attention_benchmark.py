"""The benchmark of the attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LongformerModel

from prefixprop.attention import install
from prefixprop.benchmarking.attention import (
    OURS,
    REPORTED_CASES,
    THEIRS,
    AttentionCase,
    AttentionResult,
    bench_attention,
    cases_of_lengths,
    doubling_lengths,
)
from prefixprop.benchmarking.encoders import EncoderSize, twin_of
from prefixprop.benchmarking.figures import plot_attention
from prefixprop.benchmarking.timing import Timing

TINY = EncoderSize(hidden=32, layers=2, heads=2, window=8)


def test_same_tokens_at_every_length() -> None:
    cases = cases_of_lengths([16, 32, 64], 64, 3, 0.1)
    assert [(case.batch, case.length) for case in cases] == [(4, 16), (2, 32), (1, 64)]
    assert all((case.global_tokens, case.dropout) == (3, 0.1) for case in cases)
    with pytest.raises(ValueError, match="64 tokens is not a whole number of documents of 48; choose a multiple"):
        cases_of_lengths([16, 48], 64, 3, 0.0)
    with pytest.raises(ValueError, match="20 global tokens do not fit in a document of 16"):
        cases_of_lengths([16], 64, 20, 0.0)


def test_lengths_double_up_to_32k_on_a_gpu() -> None:
    assert doubling_lengths("cuda") == [512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert doubling_lengths("cpu") == [512, 1024, 2048, 4096]
    assert AttentionCase(2, 16384, 9, 0.0) in REPORTED_CASES["cuda"]


def test_measures_both_in_both_passes() -> None:
    cases = cases_of_lengths([16, 32], 32, 2, 0.1)
    shown: list[AttentionCase] = []
    results = list(bench_attention(cases, TINY, repeats=2, progress=shown.append))
    assert [(result.case, result.name) for result in results] == [
        (case, name) for case in cases for name in ("forward", "step")
    ]
    assert tuple(shown) == cases
    for result in results:
        assert result.theirs is not None and len(result.ours.seconds) == len(result.theirs.seconds) == 2
        assert result.ratio == result.theirs.median / result.ours.median
        assert result.microseconds_per_token == pytest.approx(1e6 * result.ours.median / 32)


def test_without_hugging_face() -> None:
    (forward, step) = bench_attention(cases_of_lengths([16], 16, 2, 0.0), TINY, 1, with_hugging_face=False)
    assert forward.theirs is None and step.theirs is None and step.ratio is None and step.ours.seconds


def test_a_twin_has_the_same_weights_and_its_own_attention() -> None:
    model = LongformerModel(TINY.config(16, 0.0), add_pooling_layer=False).eval()
    twin = twin_of(model)
    install(twin)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(mine is other for mine, other in pairs)
    assert "forward" in vars(twin.encoder) and "forward" not in vars(model.encoder)
    tokens = torch.arange(5, 21)[None]
    torch.testing.assert_close(twin(tokens).last_hidden_state, model(tokens).last_hidden_state, atol=1e-5, rtol=1e-5)


def timed(*seconds: float, gib: float | None = None) -> Timing:
    return Timing(seconds, gib)


def test_no_ratio_where_one_ran_out_of_memory() -> None:
    case = AttentionCase(1, 16, 1, 0.0)
    assert AttentionResult(case, "step", timed(1.0, gib=1.0), timed()).ratio is None
    assert AttentionResult(case, "step", timed(), timed(1.0, gib=1.0)).microseconds_per_token is None


@pytest.mark.parametrize("gib", [None, 3.0])
def test_picture_has_a_curve_for_each_and_leaves_gaps(tmp_path: Path, gib: float | None) -> None:
    pytest.importorskip("matplotlib")
    results = []
    for case in cases_of_lengths([512, 1024, 2048], 2048, 9, 0.0):
        for name in ("forward", "step"):
            theirs = timed() if case.length == 2048 else timed(0.5, gib=gib)
            results.append(AttentionResult(case, name, timed(0.1, gib=gib), theirs))
    figure = plot_attention(results, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == (2 if gib is None else 4)
    for axis in figure.axes:
        assert axis.get_xscale() == axis.get_yscale() == "log"
    curves = {line.get_label(): list(line.get_xdata()) for line in figure.axes[1].lines}
    assert curves[OURS] == [512, 1024, 2048] and curves[THEIRS] == [512, 1024]
    (ours,) = (line for line in figure.axes[0].lines if line.get_label() == OURS)
    assert list(ours.get_ydata()) == pytest.approx([25.0, 50.0, 100.0])  # ms of a document: linear
