"""Data and model of the experiments in `conf/`."""
