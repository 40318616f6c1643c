"""What a run directory says about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop import load_run
from prefixprop.train import train

from tiny_training import comparable, tiny_settings


@pytest.mark.parametrize("keep_checkpoints", [False, True])
@pytest.mark.parametrize("content", ["{", "[]", '{"status": "running"}'])
def test_all_give_the_same_advice_on_broken_metrics_and_it_works(
    content: str, keep_checkpoints: bool, tmp_path: Path
) -> None:
    settings = tiny_settings(tmp_path, "roberta", method="head-only", epochs=1, keep_checkpoints=keep_checkpoints)
    run_dir = tmp_path / "run"
    metrics = comparable(train(settings, run_dir).metrics)
    (run_dir / "metrics.json").write_text(content)
    with pytest.raises(ValueError, match=r"metrics\.json:1: ") as of_train:
        train(settings, run_dir, resume=True)
    with pytest.raises(ValueError, match=r"metrics\.json:1: ") as of_predict:
        load_run(run_dir)
    assert str(of_train.value) == str(of_predict.value)
    if keep_checkpoints:
        assert "remove the file and finish the run again with `prefixprop train … --resume`." in str(of_train.value)
        (run_dir / "metrics.json").unlink()
        assert comparable(train(settings, run_dir, resume=True).metrics) == metrics
    else:
        assert "train it again with `prefixprop train … --overwrite`." in str(of_train.value)
        assert comparable(train(settings, run_dir, overwrite=True).metrics) == metrics
    load_run(run_dir)
