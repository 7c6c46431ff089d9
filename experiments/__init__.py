"""The data and the models of the shipped experiments, reached from `conf/` through `_target_`."""
