"""Reading checkpoints: what tensors they hold, without building a graph."""
