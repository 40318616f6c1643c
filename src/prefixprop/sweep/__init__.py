"""Sweeps: the plan of a grid of runs, the sweep that runs it, and the engines that compute."""

from prefixprop.sweep.cells import Candidate, Cell, CellProgress, cell_progress, run_name
from prefixprop.sweep.engine import Engine, Job, JobEnd, LocalEngine, run_job
from prefixprop.sweep.plan import SweepPlan, read_plan
from prefixprop.sweep.ray_cluster import RayEngine
from prefixprop.sweep.sweep import Outcome, SweepState, run_sweep, settle_finished

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
