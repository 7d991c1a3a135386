"""Where measurements are made: K devices of this process, or a process of its own that waits for orders.

Owns: the benches of K devices by batch, the orders and answers between the command and its processes.
Not here: what is measured in which order (`rounds`), how such a process finds its task (`cli.scale_process`).
Invariant: a process measures only when it is told to, and idles otherwise: one of them is busy at a time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import msgspec

from paceline.base.errors import NonFiniteError, PacelineError, ProcessError, error_from
from paceline.engine.usercode import user_code
from paceline.insight.network.measured import measure_network, network_lines
from paceline.measure.scale.bench import Bench
from paceline.measure.scale.memory import memory_told
from paceline.measure.scale.subject import MakeSubject, Noise, Prepared, Sample, Stage
from paceline.telemetry.document import plain


@dataclass(frozen=True)
class Network:
    """Measured collectives.

    Args:
      curves: as `insight.network` writes them.
      lines: for people.
    """

    curves: dict[str, Any]
    lines: tuple[str, ...]


@runtime_checkable
class Station(Protocol):
    """K devices that can be measured."""

    def prepare(self, batch: int) -> Prepared:
        """Compile all programs for a global batch of so many rows."""
        ...

    def measure(self, batch: int, stage: Stage, *, steps: int) -> Sample:
        """One measurement of a stage."""
        ...

    def noise(self, batch: int) -> Noise:
        """The gradient noise scale of the first steps."""
        ...

    def trace(self, batch: int, folder: str, *, steps: int) -> None:
        """Write a profiler's trace of some steps."""
        ...

    def network(self) -> Network:
        """Collectives on these devices, by message size."""
        ...

    def close(self) -> None:
        """Free the devices."""
        ...


class HereStation:
    """Devices of this process.

    Raises: in its methods, TaskError: the user's data raised, with the line. MemoryFitError: it does not fit.
    """

    def __init__(self, make_subject: MakeSubject, devices: Sequence[jax.Device]) -> None:
        self._make_subject, self._devices = make_subject, list(devices)
        self._benches: dict[int, Bench] = {}

    def prepare(self, batch: int) -> Prepared:
        """As `Station`."""
        start_s = time.perf_counter()
        with self._told(batch):
            made = self._benches[batch] = Bench(self._make_subject, self._devices, batch=batch)
        return Prepared(time.perf_counter() - start_s, made.no_local)

    def measure(self, batch: int, stage: Stage, *, steps: int) -> Sample:
        """As `Station`."""
        with self._told(batch):
            return self._benches[batch].measure(stage, steps=steps)

    def noise(self, batch: int) -> Noise:
        """As `Station`."""
        if len(self._devices) == 1:
            return Noise(None, "it is told from gradients of several devices, and one was measured")
        try:
            with self._told(batch):
                return self._benches[batch].noise()
        except NonFiniteError as error:  # behind all that was timed, which it must not cost
            return Noise(None, f"the training that it is told from diverged: {error.what}")

    def trace(self, batch: int, folder: str, *, steps: int) -> None:
        """As `Station`."""
        with self._told(batch):
            self._benches[batch].trace(folder, steps=steps)

    @contextlib.contextmanager
    def _told(self, batch: int) -> Iterator[None]:
        with user_code("the data of the run", when="to read rows"), memory_told(batch, devices=len(self._devices)):
            yield

    def network(self) -> Network:
        """As `Station`."""
        curves = measure_network(self._devices)
        return Network(curves.as_dict(), tuple(network_lines(curves)))

    def close(self) -> None:
        """As `Station`."""
        self._benches.clear()


class ProcessStation:
    """A process that runs `serve`, driven over its standard input and output.

    Args:
      command: starts it.
      environment: all of its environment.
      name: of it, for errors.
    Raises: in every method, what the other process raised; ProcessError: it ended, or failed otherwise.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], name: str) -> None:
        self._name = name
        # A session of its own: Ctrl-C reaches the command alone, which then closes its stations.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment), text=True,
            encoding="utf-8", start_new_session=True,
        )  # fmt: skip

    @property
    def process_id(self) -> int:
        """Of the process."""
        return self._process.pid

    def prepare(self, batch: int) -> Prepared:
        """As `Station`."""
        return msgspec.convert(self._ask("prepare", batch=batch), Prepared)

    def measure(self, batch: int, stage: Stage, *, steps: int) -> Sample:
        """As `Station`."""
        return msgspec.convert(self._ask("measure", batch=batch, stage=stage, steps=steps), Sample)

    def noise(self, batch: int) -> Noise:
        """As `Station`."""
        return msgspec.convert(self._ask("noise", batch=batch), Noise)

    def trace(self, batch: int, folder: str, *, steps: int) -> None:
        """As `Station`."""
        self._ask("trace", batch=batch, folder=folder, steps=steps)

    def network(self) -> Network:
        """As `Station`."""
        return msgspec.convert(self._ask("network"), Network)

    def close(self) -> None:
        """End the process; harmless if it has ended."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None, "both are pipes"
            try:
                stream.close()
            except OSError:  # an order that it no longer read
                continue
        self._process.kill()  # it holds nothing that has to be saved
        self._process.wait()

    def _ask(self, order: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        try:
            self._process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"ended": True}
        if "error" in answer:
            raise error_from(answer["error"])
        if "value" not in answer:
            raise self._failed(order, answer)
        return answer["value"]

    def _failed(self, order: str, answer: Mapping[str, Any]) -> ProcessError:
        if "ended" in answer:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        else:
            how = f"failed: {answer['crash']}"
        return ProcessError(
            what=f"the process that measures {self._name} {how}, in {order!r}",
            why="its numbers are missing, so nothing can be compared with them",
            fix="see its message above; if the memory was not enough (signal 9), use a smaller --batch",
        )


def serve(station: Station, *, orders: Iterable[str], answer: Callable[[str], None]) -> None:
    """Do what each line of `orders` asks for, one `answer` for each; returns when there are no more."""
    for line in orders:
        order = json.loads(line)
        said: dict[str, Any]
        try:
            value = getattr(station, order.pop("do"))(**order)
        except PacelineError as error:
            said = {"error": error.as_dict()}
        except Exception as error:  # the command says that this process failed; the trace is for whoever mends it
            traceback.print_exc(file=sys.stderr)
            said = {"crash": f"{type(error).__name__}: {error}"}
        else:
            said = {"value": plain(value)}
        answer(json.dumps(said, allow_nan=False))


def refuse(error: PacelineError, *, orders: Iterable[str], answer: Callable[[str], None]) -> None:
    """Answer every order with the error that there is no station."""
    for _ in orders:
        answer(json.dumps({"error": error.as_dict()}))
