"""TensorFlow's session classes, extended to warm starts and to steps that are prepared once.

monitored_session.py has the monitored sessions, the session creators and the Supervisor;
session_manager.py the SessionManager, which initializes everything before it restores from several
checkpoints, and the Scaffold that names one of them. cached_session.py has the session that all of
them return; fetches.py prepares what a step fetches and feeds, caller_thread.py chooses the thread
of a tiny one. tensorflow_internals.py holds all the private API of TensorFlow that is used here.

Programs use these classes as `runner.*`. Nothing here knows the configuration or a run directory;
hooks have a room of their own.
"""
