"""What computes the runs of a sweep."""

from prefixprop.sweep.engines.base import Engine, Job, JobEnd, run_job
from prefixprop.sweep.engines.local import LocalEngine
from prefixprop.sweep.engines.ray_cluster import RayEngine

__all__ = ["Engine", "Job", "JobEnd", "LocalEngine", "RayEngine", "run_job"]
