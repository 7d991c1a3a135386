"""All processes compare what a run depends on, and a difference is named.

Owns: the comparison, the words of a difference.
Not here: what is compared (`train.facts`), the exchange itself (`topology.processes`).
Invariant: either every process goes on, or every process raises the same error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.base.errors import ProcessError
from paceline.topology.processes import Processes

_SHOWN = 5
_LONGEST = 120


def agree(processes: Processes, facts: Mapping[str, Any], *, name: str) -> None:
    """Compare facts between all processes.

    Args:
      facts: JSON-ready values by dotted name.
      name: of this comparison; every process makes the same ones in the same order.
    Raises: ProcessError: a difference, with the processes and the fact. PeerError: a process does not answer.
    """
    if not processes.several:
        return
    said = [json.loads(text) for text in processes.exchange(name, json.dumps(facts, default=str))]
    names = list(dict.fromkeys(key for facts in said for key in facts))
    odd = [(key, [facts.get(key, "missing") for facts in said]) for key in names]
    odd = [(key, values) for key, values in odd if any(value != values[0] for value in values)]
    if odd:
        more = f", and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        raise ProcessError(
            what="the processes do not agree: " + "; ".join(_difference(*entry) for entry in odd[:_SHOWN]) + more,
            why="each would train another model, on gradients that all of them share",
            fix="start every process from the same files, with the same command, packages and environment",
        )


def _difference(key: str, values: Sequence[Any]) -> str:
    """``data.rows is 900 in process 1, 1000 in the others``."""
    texts = [json.dumps(value, default=str) for value in values]
    common, count = Counter(texts).most_common(1)[0]
    if 2 * count <= len(texts):
        return f"{key} is " + ", ".join(f"{_short(text)} in process {index}" for index, text in enumerate(texts[:8]))
    odd = [(index, text) for index, text in enumerate(texts) if text != common]
    told = ", ".join(f"{_short(text)} in process {index}" for index, text in odd[:8])
    return f"{key} is {told}, {_short(common)} in the others"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
