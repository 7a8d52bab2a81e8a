"""What each job costs on each core; the only place that turns layers into seconds, bytes and joules."""

from loadmaster.cost.energy import area, energy_rates, peak_power
from loadmaster.cost.table import job_table

__all__ = ["area", "energy_rates", "job_table", "peak_power"]
