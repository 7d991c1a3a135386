"""What a supervisor tells the processes that it starts, as environment variables.

Owns: their names. `launch` writes them, `topology.processes`, `telemetry.status` and `cli` read them; a Kubernetes
manifest or a script of the user's own may set the first three too.
"""

COORDINATOR = "PACELINE_COORDINATOR"
"""``host:port`` where process 0 listens."""

NUM_PROCESSES = "PACELINE_NUM_PROCESSES"
"""P, over all machines."""

PROCESS_INDEX = "PACELINE_PROCESS_INDEX"
"""0 to P - 1."""

DEVICES_PER_PROCESS = "PACELINE_DEVICES_PER_PROCESS"
"""D: GPUs that this process takes of its machine's, or CPU devices that it simulates."""

LOCAL_INDEX = "PACELINE_LOCAL_INDEX"
"""Index of this process on its machine: it takes the GPUs LOCAL_INDEX * D to LOCAL_INDEX * D + D - 1."""

LAUNCH_FOLDER = "PACELINE_LAUNCH_FOLDER"
"""Folder of the supervisor, for logs, status files, stacks and the path of the run's folder (``run-folder``)."""

ATTEMPT = "PACELINE_ATTEMPT"
"""0 at first, one more after each restart: a run then goes on from its last checkpoint."""

ALL = (COORDINATOR, NUM_PROCESSES, PROCESS_INDEX, DEVICES_PER_PROCESS, LOCAL_INDEX, LAUNCH_FOLDER, ATTEMPT)
