"""Speed, measured: `run.py` makes the table of docs/benchmarks.md."""
