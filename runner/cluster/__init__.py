"""Training by several processes on TensorFlow's distributed runtime."""
