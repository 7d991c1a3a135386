"""A JobSet manifest for Kubernetes.

Owns: its content. Source: the API types of jobset.x-k8s.io/v1alpha2 and batch/v1.
Invariant: the text is YAML that its own library wrote, so that no value can break out of its place.

One pod a machine, whose supervisor starts the processes there. A pod that fails fails its Job (backoffLimit 0), and the
JobSet then starts all pods again: a pod alone could not join peers that have lost it. Exit code 2, a user's mistake,
fails the JobSet at once.

Pods start again with the same words, and know of no attempt before them: a run must be told to resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import yaml

from paceline.base.errors import OptionError
from paceline.launch.templates.job import Job

_PORT = 12321
_GROUP = "machines"
_MARGIN_S = 30
_HEAD = """\
# kubectl apply -f FILE; needs the JobSet controller (jobset.sigs.k8s.io).
# Pods are made anew after a failure: mount a volume that all share, and let the command keep its run folder there.
"""


def render(job: Job) -> str:
    """The manifest.

    Raises: OptionError: there is no image to run, or a run that would not resume.
    """
    if not job.image:
        raise OptionError(
            what="--write kubernetes without --image",
            why="a pod runs a container image that holds paceline and your code",
            fix="use --image REGISTRY/NAME:TAG",
        )
    _check_resumes(job.launch.command)
    return _HEAD + yaml.safe_dump(_manifest(job), sort_keys=False, width=120)


def _check_resumes(command: Sequence[str]) -> None:
    words = " ".join(command).split()  # a shell's -c holds a whole command in one
    trains = "train" in words and "paceline" in (PurePath(word).name for word in words)
    if trains and not any(word == "--resume" or word.startswith("--resume=") for word in words):
        raise OptionError(
            what="--write kubernetes with paceline train and no --resume",
            why="pods that failed start again with the same command, and the run folder is there then",
            fix="add --run FOLDER --resume auto to the command",
        )


def _manifest(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {
                "maxRestarts": 10,
                "rules": [{"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [{"name": _GROUP, "replicas": 1, "template": {"spec": _job(job)}}],
        },
    }


def _job(job: Job) -> dict[str, Any]:
    nodes = job.launch.nodes
    mistake = {"containerName": "paceline", "operator": "In", "values": [2]}
    return {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": mistake}]},
        "template": {"spec": _pod(job)},
    }


def _pod(job: Job) -> dict[str, Any]:
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    container: dict[str, Any] = {
        "name": "paceline",
        "image": job.image,
        "command": ["paceline", "launch"],
        "args": _arguments(job),
        "env": [{"name": "NODE_INDEX", "valueFrom": {"fieldRef": index}}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(job.launch.stop_grace_s) + _MARGIN_S,
        "containers": [container],
    }
    if job.gpus_per_node:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus_per_node}}
        container["volumeMounts"] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # NCCL fills the usual 64 MB
        pod["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    return pod


def _arguments(job: Job) -> list[str]:
    """Kubernetes fills in ``$(NODE_INDEX)``; a dollar of the user's own is doubled, which it reads as one."""
    logs = ["--logs", _literal(str(job.launch.logs))] if job.launch.logs else []
    place = ["--node-index", "$(NODE_INDEX)", "--coordinator", f"{job.name}-{_GROUP}-0-0.{job.name}:{_PORT}"]
    return [*job.options(), *place, *logs, "--", *map(_literal, job.launch.command)]


def _literal(text: str) -> str:
    return text.replace("$", "$$")
