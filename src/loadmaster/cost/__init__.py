"""What each job costs on each core; the only place that turns layers into seconds and bytes."""

from loadmaster.cost.table import job_table

__all__ = ["job_table"]
