"""TensorFlow's session management, extended to several scaffolds and checkpoints."""
