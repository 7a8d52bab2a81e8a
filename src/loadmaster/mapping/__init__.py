"""Which core runs each job, for many jobs that share one bandwidth: M3E and MAGMA (HPCA 2022)."""
