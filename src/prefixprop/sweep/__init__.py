"""Sweeps: the plan of a grid of runs, the sweep that runs it, and the engines that compute."""

from prefixprop.sweep.engine import Engine, Job, JobEnd, LocalEngine, RayEngine, run_job
from prefixprop.sweep.plan import read_plan
from prefixprop.sweep.sweep import (
    Candidate,
    Cell,
    CellProgress,
    Outcome,
    SweepPlan,
    SweepState,
    cell_progress,
    run_name,
    run_sweep,
    settle_finished,
)

__all__ = [
    "Candidate",
    "Cell",
    "CellProgress",
    "Engine",
    "Job",
    "JobEnd",
    "LocalEngine",
    "Outcome",
    "RayEngine",
    "SweepPlan",
    "SweepState",
    "cell_progress",
    "read_plan",
    "run_job",
    "run_name",
    "run_sweep",
    "settle_finished",
]
