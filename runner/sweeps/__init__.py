"""What Hydra's sweepers and launchers need from the runner."""
