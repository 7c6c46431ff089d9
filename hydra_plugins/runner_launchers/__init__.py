"""Hydra instantiates launchers only from the top-level package `hydra_plugins`."""
