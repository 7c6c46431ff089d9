"""The door from Python, in scripts and notebooks: by the rules of the command line.

- `door`: how errors leave, and what a run puts back in the process.
- `result`: `Result`, a run as Python sees it.
- `start`: `start`, by which every run starts, on the command line too.
- `run`: `run`, of an experiment; `fit`: of a function that returns a compiled model, with its
  arguments checked in `fit_arguments`; `sweep`: a grid or a search of either.

Doors: these three, and `open_run`, all of the package `runner` itself. What a run does is in
`runner.lifecycle`; the command line is the room `commands`.
"""
