"""What computes the runs of a sweep."""

from prefixprop.experiments.engines.base import Engine, Job, JobEnd, run_job
from prefixprop.experiments.engines.local import LocalEngine
from prefixprop.experiments.engines.ray_cluster import RayEngine

__all__ = ["Engine", "Job", "JobEnd", "LocalEngine", "RayEngine", "run_job"]
