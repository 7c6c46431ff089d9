"""TensorFlow's session classes, extended to warm starts and to steps that are prepared once.

- `monitored_session`: the monitored sessions, the session creators and the Supervisor.
- `session_manager`: the SessionManager, which restores the model's own checkpoint if there is one.
  Otherwise it lets its restorer first initialize everything and then restore.
- `pretrained`: the restorer of scaffolds with savers, by a plan of what the savers restore. Runs
  have a `Restorer` of their own plan.
- `waiting`: says which task of a cluster a session waits for.
- `cached_session`: the session under all monitored sessions; it prepares each kind of step once.
  `fetches`: what a step fetches and feeds. `short_step`: runs a tiny step in the caller's thread
  where that is faster.

Programs use these classes as `runner.*`. Nothing here knows the configuration or a run directory;
hooks have a room of their own, and TensorFlow's private API is in `runner.internals.tensorflow`.
"""
