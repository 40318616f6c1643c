"""A run from settings to its directory, by one process and by two, and what methods make of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

from launching import launch_two
from prefixprop.evaluate import TEMPERATURE_SPREAD, fit_temperature, read_predictions
from prefixprop.models import candidate_scorer
from prefixprop.predict import PredictionOptions, load_run
from prefixprop.predict.run_data import predict_split
from prefixprop.runs.directory import LOCK
from prefixprop.settings.methods import METHODS
from prefixprop.train import (
    RunDirectory,
    RunSettings,
    SettingsError,
    plan,
    settings_to_yaml,
    train,
    train_label_columns,
)
from prefixprop.train.plan import build_trainable
from prefixprop.train.trainer import share_of_peak

from tiny import tiny_model
from tiny_training import LABELS, comparable, history, tiny_settings, write_documents


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four epochs."""
    folder = tmp_path_factory.mktemp("finished")
    return train(tiny_settings(folder, epochs=4), folder / "run").run_dir


def test_a_run_directory_has_everything(run_dir: Path) -> None:
    assert {path.name for path in run_dir.iterdir()} - {LOCK} == {
        "config.yaml", "labels.json", "environment.json", "lengths.json", "history.jsonl", "predictions",
        "manifest.json", "metrics.json", "adapter", "tokenizer", "README.md",
    }  # fmt: skip
    metrics = RunDirectory(run_dir).read_metrics()
    assert metrics["status"] == "finished" and metrics["parameters"]["prefix"] == 3 * 2 * 32
    assert json.loads((run_dir / "labels.json").read_text()) == sorted(LABELS)
    resolved = RunDirectory(run_dir).read_settings()
    assert resolved.max_length == 128 and resolved.attention_dropout == 0.1 and resolved.learning_rate == 1e-2
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["seed"] == 1 and environment["device"] == "cpu" and environment["packages"]["torch"]


def test_metrics_are_those_of_the_stored_predictions(run_dir: Path) -> None:
    metrics = RunDirectory(run_dir).read_metrics()
    predictions = {split: read_predictions(run_dir / "predictions" / f"{split}.jsonl") for split in ("dev", "test")}
    dev = predictions["dev"]
    temperature = fit_temperature(dev.logits, dev.known_labels, TEMPERATURE_SPREAD)
    assert metrics["temperature"] == temperature.value
    for split, stored in predictions.items():
        assert stored.ids == tuple(f"{split}-{number}" for number in range(len(stored.ids)))
        assert metrics[split] == stored.evaluate()
        assert metrics[f"{split}_calibrated"] == stored.with_temperature(temperature).evaluate()
    assert metrics["dev_calibrated"]["nll"] <= metrics["dev"]["nll"]
    assert metrics["dev"] != metrics["dev_calibrated"]


def test_the_history_has_every_epoch_and_the_best_is_kept(run_dir: Path) -> None:
    metrics, lines = RunDirectory(run_dir).read_metrics(), history(run_dir)
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    assert all(0 <= line["dev_ece"] <= 1 and line["loss"] > 0 for line in lines)
    rates = [1e-2 * share_of_peak(step, warmup=2, steps=12) for step in (2, 5, 8, 11)]  # of each epoch's last step
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates) and rates[-1] > 0
    best = max(lines, key=lambda line: line["dev_micro_f1"])  # the first of equal ones
    assert metrics["best_epoch"] == best["epoch"]
    for metric, value in metrics["dev"].items():
        assert best[f"dev_{metric}"] == pytest.approx(value, abs=1e-6), metric


@pytest.mark.parametrize(
    ("family", "method"),
    [
        *(("longformer", name) for name, method in METHODS.items() if not method.is_mix),
        ("roberta", "prefix-tuning"),
    ],
)
def test_a_model_gives_its_own_predictions_again_when_loaded(tmp_path: Path, family: str, method: str) -> None:
    settings, run_dir = tiny_settings(tmp_path, family, method=method, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    stored = read_predictions(run_dir / "predictions" / "test.jsonl")
    base = AutoModelForSequenceClassification.from_pretrained(settings.model)
    if (run_dir / "adapter").is_dir():
        model = PeftModel.from_pretrained(base, str(run_dir / "adapter"))
    elif (run_dir / "model").is_dir():
        model = AutoModelForSequenceClassification.from_pretrained(run_dir / "model")
    else:
        model, head = base, load_file(run_dir / "head" / "head.safetensors")
        assert head and all(name.startswith("classifier") for name in head)
        assert not model.load_state_dict(head, strict=False).unexpected_keys
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "tokenizer")
    lines = Path(settings.test_files[0]).read_text().splitlines()
    with torch.no_grad():
        for row, line in enumerate(lines):
            logits = model.eval()(**tokenizer(json.loads(line)["text"], return_tensors="pt")).logits[0]
            assert logits.tolist() == pytest.approx(stored.logits[row].tolist(), abs=1e-4)


@pytest.mark.parametrize("method", ["prefix-propagation+lora", "prefix-reading", "head-only"])
def test_half_precision_is_of_what_is_frozen_alone(tmp_path: Path, method: str) -> None:
    """What was trained is stored in float32, and the predictions are near those of the whole run in float32."""
    # A low rate, so that rounding alone makes the difference, and not what Adam's first steps make of it.
    settings = tiny_settings(tmp_path, method=method, epochs=1, learning_rate=1e-3)
    exact = train(replace(settings, precision="fp32"), tmp_path / "fp32").run_dir
    half = train(replace(settings, precision="bf16"), tmp_path / "bf16").run_dir
    stored = [load_file(path) for path in half.glob("[amh]*/*.safetensors")]
    assert len(stored) == 1
    assert {tensor.dtype for tensor in stored[0].values() if tensor.is_floating_point()} == {torch.float32}
    right, left = (read_predictions(folder / "predictions" / "dev.jsonl").logits for folder in (exact, half))
    difference = float(abs(left - right).max())
    assert 0 < difference < 0.1, "bf16 was used, and rounds"


@pytest.mark.parametrize(
    ("method", "learning_rate", "epochs"), [("fine-tuning", 5e-3, 16), ("prefix-reading", 1e-2, 30)]
)
def test_training_learns(tmp_path: Path, method: str, learning_rate: float, epochs: int) -> None:
    settings = tiny_settings(tmp_path, method=method, epochs=epochs, learning_rate=learning_rate, dropout=0.0)
    metrics = train(replace(settings, checkpoint_seconds=30.0), tmp_path / "r").metrics
    assert metrics["test"]["accuracy"] >= 0.75


def test_the_seed_decides(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1)
    runs = [train(replace(settings, seed=seed), tmp_path / f"r{n}").metrics for n, seed in enumerate((1, 1, 2))]
    assert comparable(runs[0]) == comparable(runs[1])
    assert comparable(runs[0]) != comparable(runs[2])


def test_how_a_step_is_computed_does_not_change_the_outcome(tmp_path: Path) -> None:
    """22 documents in steps of 8: each step has the same documents, and those of the last, short one count alike."""
    settings = tiny_settings(tmp_path, prefix_dropout=0.0, dropout=0.0, epochs=2, max_train_documents=22)
    losses = []
    for number, changes in enumerate(
        ({"device_batch_size": 8}, {"device_batch_size": 2}, {"gradient_checkpointing": True})
    ):
        run = train(replace(settings, **changes), tmp_path / f"run{number}")
        losses.append([line["loss"] for line in history(run.run_dir)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5) and losses[2] == pytest.approx(losses[0], abs=1e-5)


def test_after_the_warm_up_the_schedule_is_that_of_transformers() -> None:
    optimizers = [torch.optim.SGD([torch.zeros(1)], lr=1.0) for _ in range(2)]
    own = LambdaLR(optimizers[0], partial(share_of_peak, warmup=30, steps=300))
    theirs = get_linear_schedule_with_warmup(optimizers[1], 30, 300)
    for step in range(300):
        ours, other = (optimizer.param_groups[0]["lr"] for optimizer in optimizers)
        assert ours == other > 0 if step >= 30 else 0 < ours - other <= 1 / 31
        for part in (*optimizers, own, theirs):
            part.step()


def test_a_run_of_few_steps_says_so(tmp_path: Path) -> None:
    few = "the run has 9 steps, too few to learn much: give it more --epochs or documents, or a smaller --batch-size"
    assert few in plan(tiny_settings(tmp_path)).notes
    assert plan(tiny_settings(tmp_path, epochs=4)).notes == ()
    assert plan(tiny_settings(tmp_path, layout="reference")).settings.max_length == 126, (
        "there is room for the prefix"
    )


def test_too_long_documents_are_counted(tmp_path: Path) -> None:
    for length, remedy in ((20, "--max-length reads up to 128"), (128, None)):
        told = [note for note in plan(tiny_settings(tmp_path, max_length=length)).notes if "of all tokens" in note]
        assert [note.rpartition("; ")[2] for note in told] == ([remedy] if remedy else [])
        assert not remedy or f"of 8 test documents are longer than {length} tokens and are cut there: " in told[0]
    write_documents(tmp_path / "train.jsonl", 24, seed=1, longest=400)
    (told,) = (note for note in plan(tiny_settings(tmp_path)).notes if "of all tokens" in note)
    assert told.endswith("; a --model with a higher limit reads more")
    with pytest.raises(ValueError, match="--max-length: 500 tokens are more than the 128"):
        plan(tiny_settings(tmp_path, max_length=500))


def test_the_fold_takes_the_place_of_dev_and_there_is_no_test(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1, folds=5, fold=1), tmp_path / "run"
    metrics = train(settings, run_dir).metrics
    assert metrics["dev"]["documents"] == 5 and "test" not in metrics and "test_calibrated" not in metrics
    assert not (run_dir / "predictions" / "test.jsonl").exists()
    stored = read_predictions(run_dir / "predictions" / "dev.jsonl")
    assert len(stored.ids) == 5 and all(name.startswith("train-") for name in stored.ids)
    assert len(json.loads((run_dir / "lengths.json").read_text())) == 24 - 5
    assert "the dev set is fold 1 of 5 of the training set" in (run_dir / "README.md").read_text()
    # The fold is found again by `prefixprop evaluate`, and test stays unseen there too.
    trained = load_run(run_dir)
    assert predict_split(trained, "dev", PredictionOptions())[0].ids == stored.ids
    with pytest.raises(ValueError, match="the run has no test documents; try --split dev"):
        predict_split(trained, "test", PredictionOptions())


def test_an_early_end_is_the_last(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = tiny_settings(tmp_path, epochs=9, keep="last", early_stopping=2)
    metrics = train(settings, run_dir).metrics
    lines = history(run_dir)
    assert len(lines) == metrics["epochs"] == metrics["best_epoch"] + 2 < 9
    assert lines[-1]["dev_nll"] == pytest.approx(metrics["dev"]["nll"], abs=1e-6)


def test_a_run_has_one_label_column(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, method="readers", label_column=("topic", "tone"))
    with pytest.raises(
        SettingsError, match="--label-column: a run has one, got topic, tone; train_label_columns makes"
    ):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_label_columns_have_a_folder_each(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, method="readers", label_column=("a b", "A/B"))
    with pytest.raises(SettingsError, match="--label-column: a b, A/B would share a folder; rename one"):
        train_label_columns(settings, tmp_path / "run")


# --- the model that is trained --------------------------------------------------------------------------------------


LORA = RunSettings(task="hyperpartisan", method="lora")
USUAL = {
    "longformer": {"query", "value", "query_global", "value_global"},
    "roberta": {"query", "value"},
    "bert": {"query", "value"},
    "modernbert": {"Wqkv"},
}


def changed_layers(model: PeftModel) -> set[str]:
    names = (name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name)
    return {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize("family", USUAL)
def test_lora_changes_what_is_usual_for_the_family(family: str) -> None:
    assert changed_layers(build_trainable(tiny_model(family), LORA)) == USUAL[family]
    scorer = candidate_scorer(tiny_model(family, "FEATURE_EXTRACTION"), first_special_token=90)
    assert changed_layers(build_trainable(scorer, replace(LORA, task="wikihop"))) == USUAL[family]


def test_lora_targets_that_the_model_has_and_lacks() -> None:
    settings = replace(LORA, lora_targets=("key", "dense"))
    assert changed_layers(build_trainable(tiny_model("bert"), settings)) == {"key", "dense"}
    settings = replace(LORA, lora_targets=("query", "query_global", "Wqkv"))
    with pytest.raises(ValueError, match=r"this bert has no layers named query_global, Wqkv; it has .*key, query"):
        build_trainable(tiny_model("bert"), settings)
    with pytest.raises(ValueError, match=r"this distilbert has no layers named query, value; it has .*q_lin"):
        build_trainable(tiny_model("distilbert"), LORA)


def test_only_longformer_and_modernbert_have_backends() -> None:
    settings = RunSettings(task="hyperpartisan", method="head-only", attention_backend="sdpa")
    assert hasattr(build_trainable(tiny_model("longformer"), settings).longformer, "attention_patch")
    assert hasattr(build_trainable(tiny_model("modernbert"), settings).model, "attention_patch")
    with pytest.raises(ValueError, match=r"--attention-backend: sdpa is for Longformer .* this model is a roberta"):
        build_trainable(tiny_model("roberta"), settings)


# --- two processes --------------------------------------------------------------------------------------------------


# The documents of a step are the same, but sums over them are formed in another order: float32 rounding, over nine
# steps of AdamW. Dropout is off: each process draws masks of its own.
TOLERANCE = 1e-4


def test_two_processes_end_like_one(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, dropout=0.0, prefix_dropout=0.0, device_batch_size=4)
    (tmp_path / "run.yaml").write_text(settings_to_yaml(settings))
    printed = launch_two(
        tmp_path, "train", "--config", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "two")
    )
    assert printed.count("Run directory:") == 1, "only the main process speaks"
    one = train(settings, tmp_path / "one").metrics
    two = RunDirectory(tmp_path / "two").read_metrics()
    for split in ("dev", "test", "dev_calibrated", "test_calibrated"):
        assert two[split] == pytest.approx(one[split], abs=TOLERANCE), split
    assert two["best_epoch"] == one["best_epoch"]
    for line, other in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], abs=TOLERANCE)
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    names = {path.name for path in (tmp_path / "two").iterdir()}
    assert names == {path.name for path in (tmp_path / "one").iterdir()}
