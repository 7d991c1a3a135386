"""A real Slurm on this machine, private to one pytest process.

Owns: its configuration, its three daemons, `srun` and `sbatch` on it, their end.
Not here: what jobs compute; several machines (one node stands for them, with more CPUs than the machine has).
Invariant: nothing is left running, nothing is written outside its own folder, other Slurms of this machine are not met.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.processes.need import require_own_name, require_root, require_tools
from tests.processes.run import child_environment, end_session, finish, free_port, until

# Debian's slurm-wlm brings the rest; setpriv is part of every Debian (util-linux).
_TOOLS = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "setpriv": "util-linux",
}

_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")

# CPUs: what the node claims, so that four tasks and a batch script start on any machine (config_overrides).
# FirstJobId: JAX takes the coordinator's port from the job's number, and two pytest processes must not share it.
_CONFIG = """\
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
FirstJobId={first_job}
NodeName={host} NodeAddr=127.0.0.1 CPUs=16
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclasses.dataclass(frozen=True)
class Slurm:
    """A running Slurm: one node, one partition, 16 CPUs."""

    folder: Path

    def run(
        self,
        command: Sequence[str],
        *,
        processes: int,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float,
        options: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """`srun -n P COMMAND` to its end; its output holds that of all processes.

        Args:
          env: changes to this process's environment; None removes a variable.
          options: of `srun`, before the command, such as `--label`.
        Raises:
          subprocess.TimeoutExpired: not over within `timeout_s`; the job was cancelled.
        """
        wanted = ["srun", "--ntasks", str(processes), *options, *command]
        return finish(wanted, env=self._environment(env), timeout_s=timeout_s)

    def sbatch(
        self,
        script: Path,
        *,
        output: Path,
        env: Mapping[str, str | None] | None = None,
        options: Sequence[str] = (),
    ) -> int:
        """Queues a batch script.

        Args:
          output: file for what the job prints; a requeued job appends to it.
          options: of `sbatch`, which win over `#SBATCH` lines; a script without `--ntasks` gets one CPU.
        Returns: the job's number.
        """
        settings = ["--parsable", f"--output={output}", "--open-mode=append"]
        return int(self.tool("sbatch", *settings, *options, str(script), env=env))

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows about a job: `JobState`, `Restarts`, `ExitCode` ("code:signal"), `Reason`, ..."""
        shown = self.tool("scontrol", "show", "job", "--oneliner", str(job)).split()
        return dict(field.split("=", 1) for field in shown if "=" in field)

    def state(self, job: int) -> str:
        """PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, CANCELLED, ..."""
        return self.job(job)["JobState"]

    def wait(self, job: int, *, timeout_s: float, states: Sequence[str] = _ENDED) -> str:
        """Waits until a job is in one of `states` (by default: has ended) and returns which.

        Raises:
          TimeoutError: it was not within `timeout_s`.
        """
        until(lambda: self.state(job) in states, timeout_s=timeout_s, what=f"job {job} in {'|'.join(states)}")
        return self.state(job)

    def signal(self, job: int, number: signal.Signals, *, batch: bool = False) -> None:
        """Signals the processes that the job started with srun, or the batch script's shell alone."""
        which = ["--batch"] if batch else []
        self.tool("scancel", f"--signal={number.name.removeprefix('SIG')}", *which, str(job))

    def start_soon(self, job: int) -> None:
        """Starts a requeued job in two seconds instead of the two minutes that Slurm makes it wait."""
        # Not at once: slurmd revoked what bears the second of the requeue, and would refuse a start in that second.
        self.tool("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def tool(self, name: str, *arguments: str, env: Mapping[str, str | None] | None = None) -> str:
        """What a program of Slurm prints.

        Raises:
          AssertionError: it failed; shows its stderr.
        """
        ended = finish([name, *arguments], env=self._environment(env), timeout_s=20)
        assert ended.returncode == 0, f"{name} {' '.join(arguments)}: {ended.stderr}"
        return ended.stdout.strip()

    def _environment(self, changes: Mapping[str, str | None] | None) -> dict[str, str]:
        return child_environment(changes) | {"SLURM_CONF": str(self.folder / "slurm.conf")}


@contextmanager
def slurm_of_this_machine() -> Iterator[Slurm]:
    """Starts Slurm (about a second) and stops it with every job; skips with a reason where it cannot run."""
    require_root("slurmd")
    tools = require_tools(_TOOLS)
    host = require_own_name().split(".")[0]
    with ExitStack() as stack:
        # Not pytest's folder: a socket's path has 107 characters at most, and munged wants a folder others may enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-slurm-")))
        folder.chmod(0o755)
        slurm = Slurm(folder)
        _configure(folder, host=host)
        _start(stack, slurm, tools["munged"], *_munge_options(folder))
        until((folder / "munge.socket").is_socket, timeout_s=10, what=_log(folder, "munged"))
        for name in ("slurmctld", "slurmd"):
            _start(stack, slurm, tools[name], "-D", "-f", str(folder / "slurm.conf"))
        stack.callback(_end_jobs, slurm)
        _await_node(slurm)
        yield slurm


def _configure(folder: Path, *, host: str) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    # Not below 1024: a job's number is then at least as long as it would be on a cluster that has lived a day.
    text = _CONFIG.format(
        host=host,
        folder=folder,
        control_port=free_port(),
        node_port=free_port(),
        first_job=random.SystemRandom().randrange(1024, 50_000),
    )
    (folder / "slurm.conf").write_text(text)


def _munge_options(folder: Path) -> list[str]:
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munged.seed"}
    files["log-file"] = "munged.messages"
    return ["--foreground", *(f"--{option}={folder / name}" for option, name in files.items())]


def _start(stack: ExitStack, slurm: Slurm, *command: str) -> None:
    """Starts a daemon that ends with the `with` block, and with this process even if that is killed."""
    log = slurm.folder / f"{Path(command[0]).name}.log"
    with log.open("w") as out:
        daemon = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=slurm._environment(None),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    # Not asked to end: nothing of its state is kept, and slurmctld takes more than two seconds over it.
    stack.callback(end_session, daemon)


def _await_node(slurm: Slurm) -> None:
    def idle() -> bool:
        shown = finish(["sinfo", "--noheader", "--format=%T"], env=slurm._environment(None), timeout_s=20)
        return shown.stdout.strip() == "idle"

    try:
        until(idle, timeout_s=15, what="the node of slurm to be idle")
    except TimeoutError as error:
        logs = [_log(slurm.folder, name) for name in ("munged", "slurmctld", "slurmd")]
        raise TimeoutError("\n".join([str(error), *logs])) from None


def _log(folder: Path, name: str) -> str:
    log = folder / f"{name}.log"
    return f"{name}: {log.read_text()[-2000:] if log.exists() else 'has no log'}"


def _end_jobs(slurm: Slurm) -> None:
    """Kills every job. The daemons alone would not: a job outlives slurmd, so that slurmd can be updated."""
    with suppress(AssertionError, subprocess.TimeoutExpired, TimeoutError):
        if slurm.tool("squeue", "--noheader"):
            slurm.tool("scancel", "--signal=KILL", "--full", "--user=root")
            slurm.tool("scancel", "--user=root")
            until(lambda: not slurm.tool("squeue", "--noheader"), timeout_s=10, what="the end of every job")
    _kill_all_of(slurm.folder / "slurm.conf")


def _kill_all_of(config: Path) -> None:
    """Kills what still has this configuration in its environment, the daemons excepted (they end by themselves)."""
    wanted = f"SLURM_CONF={config}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if wanted in variables and (entry / "comm").read_text().strip() not in ("munged", "slurmctld", "slurmd"):
                os.kill(int(entry.name), signal.SIGKILL)
