"""Choosing and mixing models: against temperature scaling, and as properties of honest cross-fitting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from prefixprop.evaluate import Mix, Part, cross_fit, fit_temperature, may_be_dropped
from prefixprop.evaluate.mixing import _MOST_WEIGHT, ranked

pytestmark = pytest.mark.filterwarnings("error")
Case = tuple[list[Part], np.ndarray, np.ndarray]


def noisy(labels: np.ndarray, noise: list[float], seed: int, classes: int = 3, scale: float = 1.0) -> np.ndarray:
    """Logits [candidates, documents, classes] that know the labels, each candidate with its noise."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=(len(noise), len(labels), classes))
    return scale * (2 * np.eye(classes)[labels] + np.array(noise)[:, None, None] * drawn)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to three parts of up to three candidates, labels of at least two classes, and two to four folds."""
    documents, folds = draw(st.integers(4, 40)), draw(st.integers(2, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    labels = np.random.default_rng(seed).integers(3, size=documents)
    labels[:2] = 0, 1
    parts = []
    for index in range(draw(st.integers(1, 3))):
        noise = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 4.0, 30.0]), min_size=1, max_size=3))
        scale = draw(st.sampled_from([1e-2, 1.0, 30.0, 1e6]))
        parts.append(Part(f"part {index}", tuple(noise), noisy(labels, noise, seed + index, scale=scale)))
    return parts, labels, np.arange(documents) % folds


def fit_mix(parts: list[Part], labels: np.ndarray) -> Mix:
    """The mix of all documents."""
    return cross_fit(parts, labels, np.arange(len(labels)) % 2).final


def losses(log_probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -log_probabilities[np.arange(len(labels)), labels]


def mixed(mix: Mix, parts: list[Part]) -> np.ndarray:
    return mix.log_probabilities({part.name: part.logits[mix.chosen[part.name]] for part in parts})


@given(cases())
def test_one_part_is_temperature_scaling_of_its_best_candidate(case: Case) -> None:
    parts, labels, _ = case
    mix = fit_mix(parts[:1], labels)
    name, logits = parts[0].name, parts[0].logits
    temperatures = [fit_temperature(of_candidate, labels) for of_candidate in logits]
    probabilities = [found.apply(of_candidate) for found, of_candidate in zip(temperatures, logits, strict=True)]
    scaled = [found.scale(of_candidate) for found, of_candidate in zip(temperatures, logits, strict=True)]
    nll = [losses(log_softmax(of_candidate, axis=1), labels).mean() for of_candidate in scaled]
    chosen = mix.chosen[name]
    assert nll[chosen] <= min(nll) * (1 + 1e-9) + 1e-9
    assert mix.weights[name] == pytest.approx(1 / temperatures[chosen].value, rel=1e-6)
    np.testing.assert_allclose(np.exp(mixed(mix, parts[:1])), probabilities[chosen], atol=1e-6)


@given(cases())
def test_a_mix_is_never_worse_on_its_own_documents_than_the_best_part(case: Case) -> None:
    parts, labels, _ = case
    mix = fit_mix(parts, labels)
    alone = [losses(mixed(fit_mix([part], labels), [part]), labels) for part in parts]
    best = min(range(len(parts)), key=lambda index: alone[index].mean())
    gains = alone[best] - losses(mixed(mix, parts), labels)
    assert gains.mean() >= -1e-9
    if len(mix.used) > 1:
        assert gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)) * (1 - 1e-6)
    assert all(0 <= weight <= _MOST_WEIGHT * (1 + 1e-9) for weight in mix.weights.values())


@given(cases())
def test_cross_fitting_fits_a_mix_on_the_other_folds(case: Case) -> None:
    parts, labels, folds = case
    found = cross_fit(parts, labels, folds)
    assert found.final == fit_mix(parts, labels)
    np.testing.assert_allclose(np.exp(found.log_probabilities).sum(axis=1), 1)
    for fold in np.unique(folds):
        others, asked = folds != fold, folds == fold
        if len(np.unique(labels[others])) < 2:
            continue
        on_others = [Part(part.name, part.candidates, part.logits[:, others]) for part in parts]
        mix = fit_mix(on_others, labels[others])
        here = [Part(part.name, part.candidates, part.logits[:, asked]) for part in parts]
        np.testing.assert_array_equal(found.log_probabilities[asked], mixed(mix, here))
        for part, its in zip(on_others, here, strict=True):
            np.testing.assert_array_equal(
                found.alone[part.name][asked], mixed(fit_mix([part], labels[others]), [its])
            )


def many_labels(documents: int = 2000) -> np.ndarray:
    return np.random.default_rng(5).integers(3, size=documents)


def test_the_weights_are_those_that_the_labels_were_drawn_with() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 20000, 4))
    true_weights = np.array([1.5, 0.4, 0.0])
    labels = (np.tensordot(true_weights, logits, axes=1) + generator.gumbel(size=logits.shape[1:])).argmax(axis=1)
    parts = [Part(name, (0.0,), of_part[None]) for name, of_part in zip("abc", logits, strict=True)]
    found = cross_fit(parts, labels, np.arange(20000) % 2)
    assert list(found.final.weights.values()) == pytest.approx(true_weights, abs=0.05)
    assert (found.log_probabilities.argmax(axis=1) == labels).mean() > (logits[0].argmax(axis=1) == labels).mean()


def test_all_weight_stays_on_the_better_part_where_the_other_adds_nothing() -> None:
    labels = many_labels(300)
    logits = noisy(labels, [1.0], 1)
    noise = np.random.default_rng(2).normal(size=logits.shape)
    parts = [Part("words", (1.0,), noise), Part("readers", (1.0,), logits)]
    mix = fit_mix(parts, labels)
    assert mix.used == ("readers",) and mix.weights["words"] == 0
    np.testing.assert_allclose(mix.log_probabilities({"readers": logits[0]}), mixed(mix, parts))


def test_a_diverged_candidate_is_chosen_only_if_all_have_diverged() -> None:
    labels = many_labels(60)
    logits = noisy(labels, [0.1, 1.0, 9.0], 1)
    logits[0, 7] = np.nan, 0, np.inf
    part = Part("readers", (1e-3, 2e-3, 5e-3), logits)
    for fold in range(3):
        assert ranked(part, labels, np.arange(60) % 3 != fold)[0] == 1, "also without the fold where it diverged"
    logits[1:, 3] = np.nan
    mix = fit_mix([Part("readers", (1e-3, 2e-3, 5e-3), logits)], labels)
    assert mix.chosen == {"readers": 0}
    answers = mix.log_probabilities({"readers": logits[0]})
    np.testing.assert_allclose(np.exp(answers[7]), 1 / 3)
    assert np.isfinite(answers).all()


def test_candidates_are_dropped_that_no_fold_needs() -> None:
    labels, folds = many_labels(90), np.arange(90) % 3
    logits = noisy(labels, [1.0, 1.2, 9.0, 20.0], 1)
    assert may_be_dropped(Part("readers", (1, 2, 5, 10), logits), labels, folds) == [2, 3]
    # The third one is the best but for fold 0: only the choice without fold 0 wants it.
    logits[2] = noisy(labels, [0.1], 3)[0]
    logits[2, folds == 0] = -20 * np.eye(3)[labels[folds == 0]]
    assert may_be_dropped(Part("readers", (1, 2, 5, 10), logits), labels, folds) == [3]
    assert may_be_dropped(Part("readers", (1, 2), logits[:2]), labels, folds) == []


FEW, SIXTY = noisy(np.array([0, 0, 1, 1]), [0.5], 1), many_labels(60)
HUGE = np.array([[[3e38, -3e38], [-3e38, 3e38], [3e38, -3e38]]])  # the limit of single precision


@pytest.mark.parametrize(
    ("logits", "labels", "folds", "expected"),
    [
        ([np.ones((2, 4, 2)), np.zeros((1, 4, 2))], [0, 0, 0, 1], [0, 1, 0, 1], 0.5),  # documents are all alike
        ([FEW, -FEW], [0, 0, 1, 1], [0, 0, 1, 1], None),  # labels are missing in all other folds
        ([FEW[:, 1:3]], [0, 1], [3, 8], None),
        ([-noisy(SIXTY, [1.0], 1), -noisy(SIXTY, [1.0], 2)], SIXTY, np.arange(60) % 2, 1 / 3),  # worse than chance
        ([HUGE, -HUGE], [0, 1, 1], [0, 1, 0], None),
    ],
)
def test_there_is_an_answer_whatever_the_parts_say(logits, labels, folds, expected: float | None) -> None:
    parts = [Part(f"part {index}", tuple(range(len(one))), one) for index, one in enumerate(logits)]
    found = cross_fit(parts, labels, folds)
    answers = np.exp(found.log_probabilities)
    np.testing.assert_allclose(answers.sum(axis=1), 1)
    assert expected is None or np.abs(answers - expected).max() < 0.02
    assert set(found.final.chosen.values()) == {0}


def test_documents_of_one_label_leave_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="all documents have the same label"):
        cross_fit([Part("readers", (1.0,), np.zeros((1, 3, 2)))], [1, 1, 1], [0, 1, 0])
