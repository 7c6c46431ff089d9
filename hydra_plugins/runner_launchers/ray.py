"""`hydra/launcher: ray`, found by Hydra here."""

from __future__ import annotations

from runner.sweeps.ray_launch import RayLaunch


class RayLauncher(RayLaunch):
    """See `runner.sweeps.ray_launch`."""
