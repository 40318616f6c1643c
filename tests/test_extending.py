"""What docs/architecture.md says of a new backbone, kernel, method and task, done in a package of one's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING

import command_line
from prefixprop.backbones import FAMILIES, family_of, find_backbone
from prefixprop.data import TASKS
from prefixprop.kernels import KERNELS
from prefixprop.settings.methods import METHODS

from tiny import adapt, batch, both_methods, tiny_model
from tiny_training import tiny_settings, write_plan

TABLES: tuple[dict, ...] = (
    FAMILIES, KERNELS, METHODS, TASKS,
    PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING,
)  # fmt: skip

BACKBONE = '''
from prefixprop.backbones import FAMILIES
from prefixprop.backbones.bert import BertBackbone

class MegatronBackbone(BertBackbone):
    """BERT that normalises in front of every block, and so not in its embeddings."""

    def embed_empty_words(self, count):
        positions = self.embeddings.position_embeddings.weight[:count]
        return self.embeddings.dropout(positions + self.embeddings.token_type_embeddings.weight[0])

FAMILIES["megatron-bert"] = MegatronBackbone
'''

KERNEL = '''
from dataclasses import dataclass
from prefixprop.kernels import Kernel, register_kernel

@register_kernel("overlap")
@dataclass(frozen=True)
class Overlap(Kernel):
    """Relu of the product."""

    def similarity(self, query, key):
        return (query @ key.transpose(-1, -2)).relu()
'''

METHOD = '''
from dataclasses import dataclass
from enum import Enum

from prefixprop.config import PrefixTuningConfig
from prefixprop.settings.methods import ADAPTER, METHODS, Method
from prefixprop.tuners import PrefixTuningModel, register_method
from prefixprop.tuners.tuning import TuningLayer

class OwnPeftType(str, Enum):
    KEYS_ALONE = "KEYS_ALONE"

@dataclass
class KeysAloneConfig(PrefixTuningConfig):
    """Prefix-tuning with values of zero."""

    def __post_init__(self):
        super().__post_init__()
        self.peft_type = OwnPeftType.KEYS_ALONE

class KeysAloneLayer(TuningLayer):
    def key_values(self, layer, batch):
        found = super().key_values(layer, batch)
        return None if found is None else (found[0], 0 * found[1])

class KeysAloneModel(PrefixTuningModel):
    peft_type = OwnPeftType.KEYS_ALONE
    tuner_layer_cls = KeysAloneLayer

register_method(KeysAloneConfig, KeysAloneModel)
METHODS["keys-alone"] = Method(
    "keys-alone",
    "keys that take attention away, and the head",
    learning_rate=0.0321,
    trains=ADAPTER,
    config="mine:KeysAloneConfig",
    options={"num_virtual_tokens": "num_virtual_tokens", "prefix_dropout": "prefix_dropout"},
    is_prefix=True,
)
'''

PEFTS_METHOD = """
from prefixprop.settings.methods import ADAPTER, METHODS, Method

METHODS["ia3"] = Method(
    "ia3", "scales of keys, values and feed-forwards, and the head", 1e-2, ADAPTER, config="peft:IA3Config"
)
"""

TASK = """
from prefixprop.data import TASKS, TaskSource, load_files

def load_letters(data_dir):
    splits = ([data_dir / f"{name}.jsonl"] for name in ("train", "dev", "test"))
    return load_files(*splits, name="letters", id_column="id")

TASKS["letters"] = TaskSource(
    name="letters",
    summary="Letters to the editor: 2 classes",
    origin="a data directory",
    metric="micro_f1",
    load=load_letters,
    max_length=48,
    epochs=2,
    num_virtual_tokens=3,
    prepare=str.lower,
)
"""


BATCHES = ["--batch-size", "8", "--device-batch-size", "4"]


def call(*arguments: object, status: int = 0, package: str | None = "mine") -> tuple[str, str]:
    """What a command prints, and its errors, after the import of the package of one's own."""
    before = [] if package is None else ["--import", package]
    return command_line.call(*before, *arguments, status=status, columns=400)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the package `mine` into the current folder, and forgets what it adds, here and at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = [dict(table) for table in TABLES]

    def forget() -> None:
        sys.modules.pop("mine", None)
        for table, content in zip(TABLES, before, strict=True):
            table.clear()
            table.update(content)

    def write(code: str) -> None:
        forget()
        Path("mine").mkdir(exist_ok=True)
        Path("mine/__init__.py").write_text(code, encoding="utf-8")

    yield write
    forget()


def data_flags(folder: Path) -> list[str]:
    """Documents of one's own, as flags."""
    settings = tiny_settings(folder, "roberta")
    files = (
        flag for split in ("train", "dev", "test") for flag in (f"--{split}-files", str(folder / f"{split}.jsonl"))
    )
    return [*files, "--model", settings.model, "--id-column", "id", *BATCHES]


def predicted(run: Path, *texts: str) -> list[dict]:
    Path("new.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return [json.loads(line) for line in call("predict", run, "new.jsonl")[0].splitlines()]


# --- a backbone ---------------------------------------------------------------------------------------------------


@both_methods
@pytest.mark.parametrize("layout", ["paper", "reference"])
def test_a_backbone(package: Callable[[str], None], method: str, layout: str) -> None:
    model = tiny_model("megatron-bert")
    with pytest.raises(ValueError, match="cannot put prefixes on a 'megatron-bert' model"):
        find_backbone(model)
    package(BACKBONE)
    assert "megatron-bert" in call("methods")[0].rpartition("Models:")[2]
    assert type(find_backbone(model)) is family_of("megatron-bert")

    inputs, labels = batch(model, [14, 9]), torch.tensor([0, 1])
    base = model(**inputs).logits
    model = adapt(model, method, layout=layout)
    optimizer = torch.optim.SGD([model.get_prefix()], lr=0.01)
    losses = []
    for _ in range(2):
        loss = model(**inputs, labels=labels).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]
    assert not torch.allclose(model(**inputs).logits, base)
    with model.disable_adapter():
        torch.testing.assert_close(model(**inputs).logits, base)


# --- a kernel -----------------------------------------------------------------------------------------------------


def test_a_kernel(package: Callable[[str], None], tmp_path: Path) -> None:
    package(KERNEL)
    method = ("--method", "prefix-propagation+lora")
    flags = [*data_flags(tmp_path), *method, "--epochs", 1, "--run-dir", "run", "--kernel", "overlap"]
    assert "--kernel: 'overlap' is unknown" in call("train", *flags, package=None, status=1)[1]
    assert "One of exp, rbf, poly, linear, overlap." in " ".join(call("train", "--help-all")[0].split())
    assert "Relu of the product." in call("methods")[0]
    call("train", *flags)
    assert len(predicted(Path("run"), "w4 w5", "w7")) == 2
    assert "prefix-propagation+lora, overlap kernel" in call("report", "run")[0].lower()


# --- a method -----------------------------------------------------------------------------------------------------


def test_a_method(package: Callable[[str], None], tmp_path: Path) -> None:
    package(METHOD)
    flags = [*data_flags(tmp_path), "--method", "keys-alone", "--num-virtual-tokens", 2]
    assert "--method: 'keys-alone' is unknown" in call("train", *flags, package=None, status=1)[1]
    printed = " ".join(call("train", "--help-all")[0].split()).replace("- ", "-")
    assert "lora, keys-alone." in printed and "0.0321 for keys-alone" in printed
    listed = next(line for line in call("methods")[0].splitlines() if " keys-alone " in line)
    assert "KeysAloneConfig" in listed and "KEYS_ALONE" in listed and "take attention away" in listed
    assert "did you mean 'keys-alone'" in call("train", "--method", "key-alone", status=1)[1]
    plan = write_plan(tmp_path, variants={"own": {"method": "keys-alone"}, "usual": {"method": "prefix-tuning"}})
    assert "2 runs in" in call("sweep", plan, "--dry-run")[0]

    run = tmp_path / "runs" / "own"
    call("train", *flags, "--epochs", 1, "--run-dir", run)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["method"] == "keys-alone" and settings["learning_rate"] == 0.0321
    parameters = json.loads((run / "metrics.json").read_text())["parameters"]
    assert parameters["prefix"] == 2 * 3 * 2 * 32  # keys and values, layers, j, hidden
    assert "trains keys that take attention away" in (run / "README.md").read_text()
    loaded = PeftModel.from_pretrained(tiny_model("roberta", num_labels=2), run / "adapter")
    assert type(loaded.base_model).__name__ == "KeysAloneModel"
    assert len(predicted(run, "w4 w5", "w7")) == 2

    call("train", *data_flags(tmp_path), "--epochs", 1, "--method", "prefix-tuning", "--run-dir", "runs/tuning")
    report = call("report", "runs", "--baseline", "keys-alone")[0]
    assert "keys-alone" in report and "prefix-tuning" in report

    package(METHOD)  # forgotten again: whoever lacks the package is told, not shown a traceback
    assert "'keys-alone' is unknown" in call("predict", run, "new.jsonl", package=None, status=1)[1]
    left_out = "".join(call("report", "runs", package=None))
    assert "Left out" in left_out and "'keys-alone' is unknown" in left_out


def test_a_method_that_peft_has_needs_a_row_alone(package: Callable[[str], None], tmp_path: Path) -> None:
    package(PEFTS_METHOD)
    call("train", *data_flags(tmp_path), "--epochs", 1, "--method", "ia3", "--run-dir", "run")
    assert json.loads(Path("run/metrics.json").read_text())["parameters"]["rest"] > 0
    assert len(predicted(Path("run"), "w4 w5", "w7")) == 2


# --- a task -------------------------------------------------------------------------------------------------------


def test_a_task(package: Callable[[str], None], tmp_path: Path) -> None:
    package(TASK)
    model = tiny_settings(tmp_path, "roberta").model
    flags = ["--task", "letters", "--data-dir", tmp_path, "--model", model, *BATCHES]
    assert "--task: 'letters' is unknown" in call("train", *flags, package=None, status=1)[1]
    printed = " ".join(call("train", "--help-all")[0].split()).replace("- ", "-")
    assert "hybridqa, letters." in printed and "2 for letters" in printed and "3 for letters" in printed
    listed = next(line for line in call("tasks")[0].splitlines() if " letters " in line)
    assert "Letters to the editor" in listed and "micro_f1" in listed

    call("train", *flags)
    run = Path("runs/letters-prefix-propagation-1")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert (settings["epochs"], settings["num_virtual_tokens"], settings["max_length"]) == (2, 3, 48)
    shouted, said = predicted(run, "W4 W5 W4", "w4 w5 w4")
    assert shouted["probabilities"] == said["probabilities"]  # `prepare` of the task
    assert "micro_f1" in call("evaluate", run)[0]
    assert "letters, test: results" in call("report", run)[0]
