"""A tiny experiment whose steps take a fraction of a millisecond."""
