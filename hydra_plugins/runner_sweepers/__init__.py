"""Hydra instantiates sweepers only from the top-level package `hydra_plugins`."""
