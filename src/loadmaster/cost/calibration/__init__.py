"""Calibration: fits what a target leaves free to measured times."""
