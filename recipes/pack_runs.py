"""Make small copies of finished runs, to be kept and shared: adapters in bfloat16, without predictions.

    python recipes/pack_runs.py FOLDER RUN...

FOLDER gets a run directory for each, under its name, which `prefixprop evaluate`, `predict` and `serve` read. The
tokenizer of an encoder in the package is left out, and so are paths of the machine that trained.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file

from prefixprop.atomic_files import replacing_folder, write_json, write_text
from prefixprop.choices import EMBEDDED_MODELS
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.resolve import settings_to_yaml


def pack(run: Path, target: Path) -> None:
    source = RunDirectory(run)
    metrics, settings = source.read_metrics(), source.read_settings()
    source.check_intact(weights=True)
    with replacing_folder(target) as folder:
        packed = RunDirectory(folder)
        write_text(packed.config, settings_to_yaml(replace(settings, data_dir=None)))
        write_json(packed.environment, source.read_environment() | {"command": None})
        for file in (source.labels, source.model_card):
            shutil.copyfile(file, folder / file.name)
        if settings.model not in EMBEDDED_MODELS:
            shutil.copytree(source.tokenizer, packed.tokenizer)
        shutil.copytree(run / settings.method_row.trains, folder / settings.method_row.trains)
        for file in folder.rglob(SAFETENSORS_WEIGHTS_NAME):
            save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, {"format": "pt"})
        packed.finish(metrics)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        pack(Path(name), Path(sys.argv[1]) / Path(name).name)
