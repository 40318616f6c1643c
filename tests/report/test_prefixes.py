"""The share of attention that prefixes get, and the figures of alpha and of that share."""

from __future__ import annotations

import pytest
import torch

from prefixprop.report import plot_alpha, plot_prefix_share, prefix_share

from tiny import adapt, batch, both_methods, every_family, tiny_model

HISTORY = [
    {"step": step, "loss": 1.0, **{f"alpha/layer_{layer}": 0.1 * layer + 0.01 * step for layer in (1, 2, 3)}}
    for step in range(1, 6)
]
BY_HEAD = [
    {
        "step": step,
        **{f"alpha/layer_{layer}/head_{head}": head * step / layer for layer in range(1, 7) for head in (1, 2)},
    }
    for step in range(1, 6)
]


@both_methods
@every_family
def test_share_of_a_zero_prefix_is_its_part_of_equal_scores(family: str, method: str) -> None:
    """With all queries zero every score is equal, so the prefix gets j of the keys a row sees."""
    model = tiny_model(family, **({"local_attention": 64} if family == "modernbert" else {}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name:
                parameter.zero_()
            elif "Wqkv" in name:
                parameter[:32].zero_()
    adapted = adapt(model, method, length=4)
    inputs = batch(model, [11])
    share = prefix_share(adapted, inputs)
    assert share.shape == (3, 4, 11)
    (axis,) = plot_prefix_share(share).axes
    assert list(axis.lines[0].get_ydata()) == pytest.approx(share.mean(dim=(1, 2)).tolist())
    if family != "longformer":
        torch.testing.assert_close(share, torch.full((3, 4, 11), 4 / 15))
        return
    everywhere = [0]  # [CLS]
    for layer, reach in enumerate((4, 8, 4)):
        for token in range(11):
            near = {other for other in range(11) if abs(other - token) <= reach} | set(everywhere)
            seen = 11 if token in everywhere else len(near)
            expected = torch.full((4,), 4 / (4 + seen))
            torch.testing.assert_close(share[layer, :, token], expected)


def test_share_restores_the_model() -> None:
    adapted = adapt(tiny_model("roberta"), "propagation").train()
    before = adapted.get_base_model().config._attn_implementation
    prefix_share(adapted, batch(adapted, [9]))
    assert adapted.training and adapted.get_base_model().config._attn_implementation == before


def test_share_needs_an_active_softmax_prefix_and_one_document() -> None:
    model = adapt(tiny_model(), "propagation")
    with pytest.raises(ValueError, match="one document at a time, not 2"):
        prefix_share(model, batch(model, [9, 5]))
    with model.disable_adapter(), pytest.raises(ValueError, match="no active prefix"):
        prefix_share(model, batch(model, [9]))
    split = adapt(tiny_model(), "propagation", kernel="exp")
    with pytest.raises(ValueError, match="alpha takes its place"):
        prefix_share(split, batch(split, [9]))


def test_alpha_picture_draws_the_history() -> None:
    figure = plot_alpha(HISTORY)
    assert [axis.get_title() for axis in figure.axes] == ["layer 1", "layer 2", "layer 3"]
    steps, values = figure.axes[1].lines[0].get_data()
    assert list(steps) == [1, 2, 3, 4, 5]
    assert list(values) == pytest.approx([0.21, 0.22, 0.23, 0.24, 0.25])

    by_head = plot_alpha(BY_HEAD)
    visible = [axis for axis in by_head.axes if axis.get_visible()]
    assert len(visible) == 6
    *heads, mean = visible[0].lines
    assert len(heads) == 2
    assert list(mean.get_ydata()) == pytest.approx([1.5 * step for step in range(1, 6)])


def test_history_without_alpha() -> None:
    with pytest.raises(ValueError, match=r"no alpha; train with prefixprop.train.log_alpha\(trainer\)"):
        plot_alpha([{"loss": 1.0, "step": 1}])
