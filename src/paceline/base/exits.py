"""Exit codes of the program beside those that errors carry (0 done, 1 the run failed, 2 a user's mistake)."""

LOST_PEER = 75
"""Another process of the run died, hung or cannot be reached: EX_TEMPFAIL of sysexits.h, worth another try."""

INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells expect."""

TERMINATED = 143
"""SIGTERM, or SIGUSR1 under Slurm: 128 + SIGTERM. The state was saved, unless checkpoints are off, and schedulers may
queue the job again."""

BROKEN_PIPE = 141
"""Nobody reads the output any more, as behind `| head`: 128 + SIGPIPE, as other programs end."""
