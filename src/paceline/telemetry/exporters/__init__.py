"""Copies of a run's events for TensorBoard, Weights & Biases and MLflow. Their packages are imported when asked for."""
