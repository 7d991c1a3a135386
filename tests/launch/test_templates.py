"""Files for schedulers: right in form, safe against any value, and what they run when they run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paceline.base.errors import OptionError
from paceline.launch.settings import Launch
from paceline.launch.templates import kubernetes, slurm
from paceline.launch.templates.job import job_for, write_job

NASTY = ["paceline", "train", "it's", 'a "b"', "$HOME", "$(id)", "`id`", "a\nb", "--x=$$(NODE_INDEX)", "\\", "é", "{x}"]


def job(
    command=("paceline", "train", "image"), *, path="train.sh", gpus=8, image=None, time=None, processes=8, **changes
):
    launch = Launch(list(command), processes, **{"nodes": 2, **changes})
    return job_for(launch, path=Path(path), gpus_per_node=gpus, image=image, time=time)


@pytest.fixture
def sbatch(tmp_path):
    """`sbatch(script, code, ...)`: run a script as Slurm does, with stand-ins that record how they are called."""

    def stand_in(name, body):
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
        file.chmod(0o755)

    record = (
        f"open({str(tmp_path)!r} + '/' + os.path.basename(sys.argv[0]), 'a').write(json.dumps(sys.argv[1:]) + '\\n')"
    )
    stand_in("paceline", f"{record}; sys.exit(int(os.environ['CODE']))")
    stand_in("scontrol", f"{record}; print('node7') if sys.argv[1] == 'show' else None")
    # The task starts at the first word that is no option of srun itself.
    stand_in(
        "srun",
        f"{record}\nrest = sys.argv[1:]\nwhile rest[0][:2] == '--': rest.pop(0)\nos.execvp(rest[0], rest)",
    )

    def run(script, code=0, **environment):
        file = tmp_path / "job.sh"
        file.write_text(script)
        given = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NODEID": "1", "CODE": str(code)}
        ran = subprocess.run(
            ["bash", str(file)],
            env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": "/home/x", **given, **environment},
            capture_output=True,
            text=True,
        )
        calls = {
            name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            if (tmp_path / name).exists()
            else []
            for name in ("paceline", "scontrol", "srun")
        }
        return ran, calls

    return run


def test_a_slurm_script_starts_one_supervisor_a_machine(sbatch):
    """On machine 1: its index, 8 processes with a GPU each; coordinator: the first machine and a port of the job."""
    ran, calls = sbatch(slurm.render(job()))
    assert ran.returncode == 0 and ran.stderr == ""
    assert calls["paceline"] == [
        ["launch", "--node-index", "1", "-n", "8", "--nodes", "2", "--devices-per-process", "1",
         "--coordinator", "node7:16711", "--logs", "runs/slurm-4711", "--attempt", "0",
         "--", "paceline", "train", "image"]
    ]  # fmt: skip
    assert calls["srun"][0][:2] == ["--ntasks-per-node=1", "--cpu-bind=none"]


def test_a_slurm_script_asks_for_what_was_said():
    """Machines, GPUs, time, the warning 120 s before the end, and to be queued again."""
    lines = slurm.render(job(time="12:00:00", path="jobs/My Run.sbatch")).splitlines()
    head = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert lines[0] == "#!/bin/bash"
    assert {"job-name=my-run", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "time=12:00:00"} <= set(head)
    assert {"signal=USR1@120", "requeue", "open-mode=append"} <= set(head)
    assert not any("gpus" in line or "time" in line for line in slurm.render(job(gpus=None)).splitlines()[:9])


@pytest.mark.parametrize("image", [None, "registry/it's mine:1"])
def test_words_of_a_command_reach_it_unchanged_through_slurm(sbatch, image):
    """Quotes, dollars, newlines, backslashes: nothing is read by a shell. The script passes `bash -n`."""
    script = slurm.render(job(NASTY, image=image, logs=Path('lo"gs $HOME'), processes=1))
    ran, calls = sbatch(script)
    assert ran.returncode == 0 and ran.stderr == ""
    called = calls["paceline"][0]
    assert called[called.index("--") + 1 :] == NASTY
    assert called[called.index("--logs") + 1] == 'lo"gs $HOME/slurm-4711'
    assert [word for word in calls["srun"][0] if "container" in word] == (
        [f"--container-image={image}"] if image else []
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("code", "environment", "requeued"),
    [(0, {}, 0), (1, {}, 0), (2, {}, 0), (143, {}, 1), (75, {}, 1), (75, {"SLURM_RESTART_COUNT": "100"}, 0)],
)
def test_a_job_that_saved_or_lost_a_machine_is_queued_again(sbatch, code, environment, requeued):
    """143 and 75, at most 100 times; a success, a failure and a mistake are not. The exit code is the run's."""
    ran, calls = sbatch(slurm.render(job()), code, **environment)
    assert ran.returncode == code
    assert [call for call in calls["scontrol"] if call[0] == "requeue"] == [["requeue", "4711"]] * requeued


def test_a_requeued_job_goes_on_with_its_run(sbatch):
    """The logs folder is that of the job, and the attempt Slurm's count."""
    _, calls = sbatch(slurm.render(job(max_restarts=3, hang_timeout_s=90.0)), SLURM_RESTART_COUNT="2")
    words = calls["paceline"][0]
    assert words[words.index("--attempt") + 1] == "2" and words[words.index("--max-restarts") + 1] == "3"
    assert words[words.index("--hang-timeout") + 1] == "90"


def test_a_cancelled_job_is_not_queued_again(sbatch, tmp_path):
    """`scancel` sends SIGTERM to the script, too: the run saves and ends with 143, and that is the end."""
    script = slurm.render(job()).replace("code=$?", "code=$?; kill -TERM $$")
    ran, calls = sbatch(script, 143)
    assert ran.returncode == 143 and not [call for call in calls["scontrol"] if call[0] == "requeue"]


def manifest(*arguments, **options):
    command = arguments[0] if arguments else ("paceline", "train", "image", "--resume", "auto")
    return yaml.safe_load(kubernetes.render(job(command, **{"image": "registry/paceline:1", **options})))


def test_a_manifest_is_a_jobset_of_one_indexed_job():
    """Field by field after jobset.x-k8s.io/v1alpha2 and batch/v1: two pods that restart together, never alone."""
    jobset = manifest(path="train.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    spec = jobset["spec"]
    assert set(spec) == {"network", "failurePolicy", "replicatedJobs"}
    assert spec["network"] == {"enableDNSHostnames": True, "subdomain": "train"}
    (group,) = spec["replicatedJobs"]
    assert set(group) == {"name", "replicas", "template"} and group["replicas"] == 1
    inner = group["template"]["spec"]
    assert (inner["completionMode"], inner["completions"], inner["parallelism"], inner["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    pod = inner["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is refused with any other
    assert pod["terminationGracePeriodSeconds"] == 90
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    mounted = [volume["name"] for volume in pod["containers"][0]["volumeMounts"]]
    assert mounted == [volume["name"] for volume in pod["volumes"]]


def test_a_mistake_fails_the_jobset_at_once():
    """Exit code 2 of the container: the Job fails with reason PodFailurePolicy, and the JobSet is not restarted."""
    spec = manifest()["spec"]
    assert spec["failurePolicy"]["rules"][0]["action"] == "FailJobSet"
    assert spec["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", spec["failurePolicy"]["rules"][0]["name"])
    inner = spec["replicatedJobs"][0]["template"]["spec"]
    (rule,) = inner["podFailurePolicy"]["rules"]
    container = inner["template"]["spec"]["containers"][0]["name"]
    assert rule == {"action": "FailJob", "onExitCodes": {"containerName": container, "operator": "In", "values": [2]}}


def test_pods_find_each_other_by_the_name_of_the_first():
    """<jobset>-<replicated job>-<job index>-<pod index>.<subdomain>, and each knows its index."""
    jobset = manifest(path="gpt-2.yaml")
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    arguments = container["args"]
    assert container["command"] == ["paceline", "launch"]
    assert arguments[arguments.index("--coordinator") + 1] == "gpt-2-machines-0-0.gpt-2:12321"
    assert arguments[arguments.index("--node-index") + 1] == "$(NODE_INDEX)"
    (variable,) = container["env"]
    assert variable["name"] == "NODE_INDEX"
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": path}}


def test_words_of_a_command_reach_it_unchanged_through_kubernetes():
    """Kubernetes reads `$$` as one dollar and `$(NAME)` as a variable: after that they are the user's words."""
    nasty = [*NASTY, "--resume"]
    container = manifest(nasty)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    words = [
        re.sub(r"\$\$|\$\(NODE_INDEX\)", lambda m: "$" if m[0] == "$$" else "1", word) for word in container["args"]
    ]
    assert words[words.index("--") + 1 :] == nasty


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("paceline train image", True),
        ("/opt/bin/paceline train image --run /data/x", True),
        ("python -m paceline train image --resumes", True),
        ("paceline train image --run /data/x --resume auto", False),
        ("paceline train image --run /data/x --resume=auto", False),
        ("python train.py", False),
        ("paceline verify image", False),
    ],
)
@pytest.mark.parametrize("shell", [False, True], ids=["words", "shell"])
def test_a_manifest_needs_a_run_that_resumes(command, refused, shell):
    """Pods start again with the same words, and the run folder is there then. Other programs see to it themselves."""
    words = ["bash", "-c", f"cd /code && {command}"] if shell else command.split()
    if not refused:
        assert manifest(words)
        return
    with pytest.raises(OptionError) as caught:
        manifest(words)
    assert caught.value.fix == "add --run FOLDER --resume auto to the command"


def test_a_manifest_without_gpus_asks_for_none():
    """Neither limits nor shared memory."""
    pod = manifest(gpus=None, processes=2)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert "volumes" not in pod and "resources" not in pod["containers"][0]


def test_a_manifest_needs_an_image():
    """A pod runs nothing else."""
    with pytest.raises(OptionError) as caught:
        kubernetes.render(job())
    assert "use --image REGISTRY/NAME:TAG" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [("train.sh", "train"), ("My Run.v2.yaml", "my-run"), ("2x8.sh", "paceline-2x8"), ("___.sh", "paceline"),
     ("a" * 80 + ".sh", "a" * 30), ("ä.sh", "paceline")],
)  # fmt: skip
def test_a_job_is_named_after_its_file(path, name):
    """Lower-case letters, digits, dashes; short enough for the host names that Kubernetes makes of it (63)."""
    assert job(path=path).name == name


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"gpus": -1}, "use --gpus-per-node 1 or more"),
        ({"gpus": 4}, "use at most -n 4, or more --gpus-per-node"),
        ({"processes": 2, "devices_per_process": 5}, "use at most -n 8"),
        ({"time": "noon"}, "use for example --time 12:00:00"),
        ({"time": "1:00\n#SBATCH --uid=0"}, "use for example --time 12:00:00"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(options, fix):
    """More GPUs than there are; a time that Slurm would not read, or that would be more than a time."""
    with pytest.raises(OptionError) as caught:
        job(**options)
    assert fix in str(caught.value)


def test_gpus_are_divided_evenly():
    """8 GPUs for 2 processes are 4 each; what is left over stays idle rather than shared."""
    assert [job(processes=n).launch.devices_per_process for n in (1, 2, 3, 8)] == [8, 4, 2, 1]


def test_a_file_that_is_there_is_not_touched(tmp_path):
    """Nor is one written into a folder that is not there."""
    file = tmp_path / "job.sh"
    file.write_text("mine")
    with pytest.raises(OptionError, match="is there already") as caught:
        write_job(file, "new")
    assert "choose another name, or remove it" in str(caught.value) and file.read_text() == "mine"
    with pytest.raises(OptionError, match="No such file or directory"):
        write_job(tmp_path / "none" / "job.sh", "new")
    write_job(tmp_path / "new.sh", "new")
    assert (tmp_path / "new.sh").read_text() == "new"
