"""Whether a run may be started, resumed or overwritten in a folder; nothing but a run is ever removed.

`--overwrite` moves the old run into a subfolder. It is removed when the new run has trained a step. If the new run
fails before that, the old one is put back; if it was killed, the next start does so.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from prefixprop.atomic_files import clear_leftovers, write_text
from prefixprop.processes import is_main_process
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.recipe import differences, settings_to_yaml
from prefixprop.settings.run_settings import RunSettings

REPLACED = ".prefixprop-replaced"  # the run that a new one replaces


def check_may_start(directory: RunDirectory, resume: bool, overwrite: bool) -> None:
    """Raise unless a run may be started here with these flags; puts back what a killed run was to replace."""
    path = directory.path
    if resume and overwrite:
        raise ValueError("--resume continues a run and --overwrite removes it; give one of the two.")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose another --run-dir.")
    if (path / REPLACED).is_dir() and is_main_process():
        with directory.claimed():
            restore_replaced(directory)
    if not path.is_dir() or not _content(path):
        return
    if not directory.is_run():
        # A run killed at its very start leaves only temporary files and all settings, so these files are not a run's.
        raise ValueError(f"{path} is not empty and not a run directory; choose another --run-dir.")
    if not resume and not overwrite:
        state = "has a finished run" if directory.is_finished() else "has an unfinished run"
        raise ValueError(
            f"{path} {state}: continue it with --resume, remove it with --overwrite, or choose another --run-dir."
        )
    others = sorted(entry.name for entry in _content(path) if entry.name not in directory.own_names())
    if overwrite and others:
        raise ValueError(
            f"{path} has a run, and {', '.join(others)}, which no run has written and --overwrite would remove; move "
            "these files away, or choose another --run-dir."
        )


def check_same_settings(directory: RunDirectory, settings: RunSettings) -> None:
    """Raise if the run here was started with settings that give other results."""
    changed = differences(directory.read_settings(), settings)
    if changed:
        raise ValueError(
            f"{directory.path} was started with other settings: {'; '.join(changed)}. A resumed run keeps them: "
            "leave these flags out, choose another --run-dir, or start again with --overwrite."
        )


def check_same_documents(directory: RunDirectory, fingerprint: str) -> None:
    """Raise if the run here was started with other documents."""
    if not directory.has_documents(fingerprint):
        raise ValueError(
            f"{directory.path} was started with other documents than there are now; restore them to continue, choose "
            "another --run-dir, or start again with --overwrite."
        )


def start(directory: RunDirectory, settings: RunSettings, overwrite: bool) -> None:
    """Make the folder and write the settings; with `overwrite`, move an old run aside first."""
    directory.path.mkdir(parents=True, exist_ok=True)
    clear_leftovers(directory.path)
    if overwrite and _content(directory.path):
        replaced = directory.path / REPLACED
        replaced.mkdir()
        # The settings come last: once they are in the subfolder, all that is outside belongs to the new run.
        for entry in sorted(_content(directory.path), key=lambda entry: entry == directory.config):
            os.replace(entry, replaced / entry.name)
    write_text(directory.config, settings_to_yaml(settings))


def discard_replaced(directory: RunDirectory) -> None:
    """Remove the run that was moved aside, if there is one."""
    replaced = directory.path / REPLACED
    if replaced.is_dir():
        # Under this name it is never put back, and removed by the next start if this process is killed.
        removed = replaced.rename(directory.path / ".prefixprop-tmp-replaced")
        shutil.rmtree(removed, ignore_errors=True)


def restore_replaced(directory: RunDirectory) -> bool:
    """Put back the run that was moved aside, in place of what the new one left; False if there is none.

    The caller must hold the claim on the folder.
    """
    replaced = directory.path / REPLACED
    if not replaced.is_dir():
        return False
    if (replaced / directory.config.name).exists():
        for entry in _content(directory.path):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        os.replace(replaced / directory.config.name, directory.config)
    # Without settings there, the move to or from the subfolder was interrupted: what is outside is the old run's.
    for entry in sorted(replaced.iterdir()):
        os.replace(entry, directory.path / entry.name)
    replaced.rmdir()
    return True


def _content(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".prefixprop-")]
