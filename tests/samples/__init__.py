"""Models, data, hooks, callbacks and whole programs as users write them, with configurations."""
