"""A result of `paceline verify` as a subject: its verdict; it times nothing.

Owns: the part of its JSON that is read, the words of the verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from paceline.dashboard.compare import quantities
from paceline.dashboard.compare.result_file import Config, Real, options_of, real, typed
from paceline.dashboard.compare.subject import Case, Fidelity, Number, Setting, Subject, unknown
from paceline.dashboard.compare.told import told
from paceline.dashboard.compare.words import say

_WORST: dict[str, int] = {"drifts": 0, "differs": 1, "equal": 2}


class _Result(msgspec.Struct):
    case: str
    devices: int
    precision: str
    tolerance: Real
    verdict: Literal["equal", "differs", "drifts"]
    deviation: Real | None = None
    accumulation: int | None = None


class _Cause(msgspec.Struct):
    cause: str = ""


class _File(msgspec.Struct):
    ok: bool
    subject: str
    setting: str
    results: list[_Result]
    skipped: list[Any] = []
    causes: list[_Cause] = []
    config: Config = msgspec.field(default_factory=Config)


def verify_subject(content: Mapping[str, Any], path: str) -> Subject:
    """The subject. Raises: SubjectError: the file is damaged or of another version."""
    file = typed(content, _File, path=path, command="verify")
    fidelity = _fidelity(file)
    numbers = {quantity.key: unknown(say("compare.why.verify_times_nothing")) for quantity in quantities.DECLARED}
    if fidelity.differing is not None:
        numbers[quantities.DIFFERENCES.key] = Number(fidelity.differing, basis="proved", detail=fidelity.words)
    else:
        numbers[quantities.DIFFERENCES.key] = unknown(fidelity.words)
    numbers[quantities.UNEQUAL_AUDITS.key] = unknown(say("compare.why.verify_audits_nothing"))
    precisions = {result.precision for result in file.results} - {"float64"}
    platform = re.search(r"\(([^()]*)\)", file.setting)
    return Subject(
        kind="verify",
        path=path,
        task=file.subject,
        cases=[Case(Setting(precision=", ".join(sorted(precisions)) or None,
                            platform=platform[1] if platform else None), numbers)],
        fidelity=fidelity,
        options=options_of(file.config),
        notes=[told(file.setting)],
    )  # fmt: skip


def _fidelity(file: _File) -> Fidelity:
    count = len(file.results)
    bad = sum(result.verdict != "equal" for result in file.results)
    causes = [told(cause.cause) for cause in file.causes if cause.cause]
    if not count:
        return Fidelity("programs", None, say("compare.programs.none"))
    found = say("compare.programs.agree", count=count - bad, all=count)
    if not file.ok:
        found = (
            say("compare.programs.not_verified_cause", found=found, causes=causes)
            if causes
            else say("compare.programs.not_verified", found=found)
        )
    if file.skipped:
        found = say("compare.programs.not_run", found=found, count=len(file.skipped))
    differing = bad if bad or file.ok else len(file.causes)
    return Fidelity("programs", differing, found, [_row(result) for result in sorted(file.results, key=_badness)])


def _badness(result: _Result) -> tuple[int, int | float]:
    """Worst first: by verdict, then by the deviation as a share of what it may be; null stands for one without end."""
    deviation = math.inf if result.deviation is None else real(result.deviation)
    return _WORST[result.verdict], -deviation / real(result.tolerance)


def _row(result: _Result) -> dict[str, Any]:
    return {
        "case": result.case, "devices": result.devices, "accumulation": result.accumulation,
        "precision": result.precision, "deviation": None if result.deviation is None else real(result.deviation),
        "tolerance": real(result.tolerance), "verdict": result.verdict,
    }  # fmt: skip
