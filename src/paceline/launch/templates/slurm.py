"""A script for `sbatch`.

Owns: its text.
Invariant: nothing of the user's is read by the shell: words are quoted, and what stands behind #SBATCH was checked.

One task a machine, the supervisor, starts the processes there. `srun` with one task a process works too, as JAX finds
its peers by itself, but then nobody sees a process that hangs.
"""

from __future__ import annotations

import shlex

from paceline.launch.templates.job import WARNING_S, Job

_BODY = """\
# The first machine runs process 0, where all others meet. The port depends on the job, so that two can share a machine.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((12000 + SLURM_JOB_ID % 20000))

# scancel, or the end of the time, sends SIGTERM to this script too: the job is then not queued again.
cancelled=
trap 'cancelled=1' TERM

# One supervisor a machine; it starts the processes, watches them, and keeps their logs.
srun --ntasks-per-node=1 --cpu-bind=none{container} \\
  bash -c 'exec paceline launch --node-index "$SLURM_NODEID" "$@"' paceline \\
  {options} \\
  --coordinator "$first:$port" --logs "{logs}/slurm-$SLURM_JOB_ID" --attempt "${{SLURM_RESTART_COUNT:-0}}" \\
  -- {command}
code=$?

# 143: the time was nearly over and the state is saved. 75: a machine or the network failed. Both are worth another try.
if [ -z "$cancelled" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 100 ]; then
  case "$code" in 143 | 75) scontrol requeue "$SLURM_JOB_ID" ;; esac
fi
exit "$code"
"""


def render(job: Job) -> str:
    """The script."""
    launch = job.launch
    return (
        "\n".join(_head(job))
        + "\n\n"
        + _BODY.format(
            container=f" --container-image={shlex.quote(job.image)}" if job.image else "",
            options=shlex.join(job.options()),
            logs=_inside_quotes(str(launch.logs or "runs")),
            command=shlex.join(launch.command),
        )
    )


def _head(job: Job) -> list[str]:
    head = ["#!/bin/bash", f"#SBATCH --job-name={job.name}", f"#SBATCH --nodes={job.launch.nodes}"]
    head += ["#SBATCH --ntasks-per-node=1", "#SBATCH --exclusive"]
    if job.gpus_per_node:
        head.append(f"#SBATCH --gpus-per-node={job.gpus_per_node}")
    if job.time:
        head.append(f"#SBATCH --time={job.time}")
    head += [
        f"#SBATCH --signal=USR1@{WARNING_S}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=slurm-%j.out",
    ]
    if job.image:
        head.append("# --container-image is an option of the plugin pyxis, which the cluster must have.")
    return head


def _inside_quotes(text: str) -> str:
    """Text that stands between double quotes in the script."""
    return "".join(f"\\{letter}" if letter in '"$`\\' else letter for letter in text)
