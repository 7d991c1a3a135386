"""The states of a run on disk: saved without waiting, proven when they are read, restored to any devices."""
