"""The data (`digits`) and `models` of the shipped experiments, for `_target_`."""
