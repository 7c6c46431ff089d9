"""The data (`digits`) and `models` of the shipped experiments, reached through `_target_`."""
