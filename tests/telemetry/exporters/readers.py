"""What each exporter left behind, read back through the program's own reader or from its file format.

Owns: one function for each exporter, from a run folder to ``{key: [(step, time_s, value), ...]}``.
"""

from __future__ import annotations

import json
from collections import defaultdict

Series = dict[str, list[tuple[int, float, float]]]


def read_tensorboard(folder) -> Series:
    """Through TensorBoard's EventAccumulator, which keeps every point and leaves out what a restart made again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(point.step, point.wall_time, point.value) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def read_wandb(folder) -> Series:
    """From the transaction logs of offline runs: records in the log format of LevelDB, each one protocol buffer."""
    from wandb.proto import wandb_internal_pb2

    series: Series = defaultdict(list)
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for content in leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            if record.WhichOneof("record_type") == "history":
                row = {item.key or item.nested_key[0]: item_value(item) for item in record.history.item}
                for key, value in row.items():
                    if "/" in key:
                        series[key].append((row["step"], row["_timestamp"], float(value)))
    return dict(series)


def item_value(item):
    return json.loads(item.value_json)


def leveldb_records(content: bytes):
    """Blocks of 32 KiB; a record is one whole chunk (1), or first (2), middle (3) and last (4) ones."""
    place, parts = 7, b""  # the file begins with a header of 7 bytes
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_mlflow(folder) -> Series:
    """Through MLflow's client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (experiment,) = [found for found in client.search_experiments() if found.name == "paceline"]
    series: Series = defaultdict(list)
    for run in client.search_runs([experiment.experiment_id]):
        for key in run.data.metrics:
            series[key] += [
                (point.step, point.timestamp / 1000, point.value)
                for point in client.get_metric_history(run.info.run_id, key)
            ]
    return dict(series)


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}
