"""Training of runs: settings, run directories, resumption."""

from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.resolve import check_settings, override, read_settings, settings_to_yaml
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.plan import RunPlan, plan
from prefixprop.train.recovery import TrainingError
from prefixprop.train.run import RunResult, train, train_label_columns
from prefixprop.train.trainer import AlphaLogger, log_alpha, trained_alpha

__all__ = [
    "AlphaLogger",
    "RunDirectory",
    "RunPlan",
    "RunResult",
    "RunSettings",
    "SettingsError",
    "TrainingError",
    "check_settings",
    "log_alpha",
    "override",
    "plan",
    "read_settings",
    "settings_to_yaml",
    "train",
    "train_label_columns",
    "trained_alpha",
]
