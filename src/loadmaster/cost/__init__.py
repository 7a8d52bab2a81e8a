"""What everything costs: seconds, bytes and joules of jobs and kernels. No other package knows a
layer type."""
