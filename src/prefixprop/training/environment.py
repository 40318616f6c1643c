"""Under which circumstances a run was made: enough to make it again."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("prefixprop", "torch", "transformers", "peft", "accelerate", "numpy", "scikit-learn", "safetensors")


def describe_environment(seed: int, device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, machine, git commit of the working folder and command line."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "seed": seed,
        "git": _git(),
        "command": shlex.join(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the working folder, and whether files differ from it; None outside a repository."""
    commit = _git_output("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git_output("status", "--porcelain", "--untracked-files=no"))}


def _git_output(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
