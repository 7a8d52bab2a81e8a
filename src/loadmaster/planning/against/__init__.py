"""Checks of finished plans against the networks and the machine that they are said to be for, with
frontends and cost model as inputs."""
