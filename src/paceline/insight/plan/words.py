"""A plan as text for the terminal.

Owns: the order of the lines and their words, the curve as a plot of text.
Invariant: no number is calculated here that the JSON object has not.
"""

from __future__ import annotations

from paceline.base.units import format_bytes, format_count, format_duration, format_percent, format_rate, rate_digits
from paceline.insight.memory.advice import Advice
from paceline.insight.noise import format_rows
from paceline.insight.plan.document import cost_of
from paceline.insight.plan.plan import LargestRows, Plan
from paceline.insight.plan.times import GOOD_EFFICIENCY
from paceline.insight.timeline import each_collective

_BAR = 40


def plan_lines(plan: Plan) -> list[str]:
    """All that a plan says."""
    parallel = plan.step_program.parallel
    ways = f"{parallel.scheme}, {parallel.placement}, {parallel.precision}"
    head = f"plan for {plan.machine.name}: batch {plan.ask.batch:,} = {plan.devices} x {plan.rows:,} rows, {ways}"
    if parallel.accumulation > 1:
        head += f", {parallel.accumulation} microbatches"
    return [
        head,
        *(f"  note: {note}" for note in plan.notes),
        "",
        *_memory_lines(plan),
        "",
        *_speed_lines(plan),
        "",
        *_batch_lines(plan),
        *_cost_lines(plan),
        *_statistical_lines(plan),
        "",
        *curve_lines(plan),
    ]


def verdict(plan: Plan) -> str:
    """``fits``, ``fits with ...`` or ``does not fit``, with the margin."""
    peak, limit = plan.step_program.memory.peak, plan.limit
    if peak <= limit.default_bytes:
        left = format_bytes(limit.default_bytes - peak)
        default = " by default" if limit.default_bytes < limit.most_bytes else ""
        return f"fits: {format_bytes(peak)} of {format_bytes(limit.default_bytes)} a program has{default}, {left} left"
    if peak <= limit.most_bytes:
        left = format_bytes(limit.most_bytes - peak)
        return (
            f"fits with XLA_CLIENT_MEM_FRACTION={limit.largest_share}: {format_bytes(peak)} of "
            f"{format_bytes(limit.most_bytes)}, {left} left; not in the default {format_bytes(limit.default_bytes)}"
        )
    over = format_bytes(peak - limit.most_bytes)
    return (
        f"does not fit: {format_bytes(peak)}, {over} more than the {format_bytes(limit.most_bytes)} a program can have"
    )


def _memory_lines(plan: Plan) -> list[str]:
    parts = plan.step_program.memory.parts()
    lines = [f"memory      {verdict(plan)}"]
    lines += [f"            {format_bytes(size):>9}  {name}" for name, size in parts.items()]
    return lines + [_way_out(advice, plan.limit.most_bytes) for advice in plan.ways_out]


def _way_out(advice: Advice, limit_bytes: int) -> str:
    """A change that makes it fit, one that helps and does not suffice alone, or one whose number is not known."""
    if advice.bytes is None:
        return f"  may help: {advice.text()}"
    if advice.bytes <= limit_bytes:
        return f"  way out:  {advice.text()}"
    return f"  helps:    {advice.text()}, {format_bytes(advice.bytes - limit_bytes)} too much still"


def _speed_lines(plan: Plan) -> list[str]:
    time, terms = plan.time, plan.time.terms
    low, high = plan.single_rate_interval
    how = (
        "measured, as given"
        if plan.ask.rate is not None
        else f"predicted; 80 % interval {rate_digits(low)} to {rate_digits(high)}"
    )
    percent = f"E_{plan.devices} {time.efficiency:.1%}"
    if plan.devices > 1:
        percent += f" (80 % interval {time.efficiency_low:.1%} to {time.efficiency_high:.1%})"
    used = "" if plan.utilisation is None else f", {format_percent(plan.utilisation)} of the device's peak"
    return [
        f"work        {plan.flops_per_sample / 1e9:,.4g} GFLOP a sample{used}",
        f"speed       S_1 {format_rate(plan.single_rate)} ({how})"
        + (f", S_{plan.devices} {format_rate(plan.rate(time))}, {percent}" if plan.devices > 1 else ""),
        f"step        {format_duration(time.step_s)}: "
        + ", ".join(f"{format_duration(terms[key])} {words}" for key, words in _TERMS.items() if terms[key] > 0),
        f"wire        {_wire(plan)}",
        f"limited by  {time.binding}",
    ]


_TERMS = {
    "compute_s": "compute",
    "contention_s": "slowed by communication",
    "exposed_s": "exposed communication",
    "jitter_s": "waiting for the slowest",
    "input_s": "waiting for input",
    "host_s": "host",
}


def _wire(plan: Plan) -> str:
    uses = plan.step_program.program.collectives
    if not uses or plan.devices == 1:
        return "no communication"
    sizes = plan.step_program.program.wire_bytes_by_dtype
    sent = " and ".join(f"{format_bytes(size)} as {dtype}" for dtype, size in sizes.items())
    times = sum(times for _, times in each_collective(plan.step_program.timeline))
    blocking = sum(use.times for use in uses if use.blocking)
    hidden, exposed = plan.time.terms["hidden_s"], plan.time.terms["exposed_s"]
    return (
        f"{sent} a step in {format_count(times, 'collective')}, {blocking} of them blocking; "
        f"{format_duration(exposed)} exposed, {format_duration(hidden)} hidden behind compute"
    )


def _batch_lines(plan: Plan) -> list[str]:
    largest = plan.largest
    about = "" if largest.compiled or not largest.is_bounded else "about "
    more = "" if largest.is_bounded else " or more"
    lines = [
        f"batch       largest that fits: {about}{format_count(largest.rows, 'row')} a device{more}, "
        f"{about}{largest.rows * plan.devices:,} in all ({_how(largest)})"
        if largest.rows
        else "batch       none fits, however small: share the state with --placement zero1 or fsdp, over more devices; "
        "use devices with more memory, or a smaller model"
    ]
    if largest.data_rows is not None and largest.rows > largest.data_rows:
        lines.append(
            f"            the data have {format_count(largest.data_rows, 'row')} a device: no batch can be larger"
        )
    if plan.devices > 1 and largest.rows:
        least = plan.efficient_rows
        reach = f"E_{plan.devices} of {GOOD_EFFICIENCY:.0%}"
        lines.append(
            f"            {reach} needs {format_count(least, 'row')} a device or more"
            if least is not None
            else f"            {reach} is not reached by any batch that fits"
        )
    return lines


def _how(largest: LargestRows) -> str:
    """How the largest batch was found."""
    if largest.compiled:
        return "compiled" if largest.is_bounded else "compiled; the search ended after so many compilations"
    if largest.is_bounded:
        return "read off the line through two compiled batches; --confirm compiles it"
    return "the two compiled batches take the same memory; --confirm compiles larger ones"


def _cost_lines(plan: Plan) -> list[str]:
    cost = cost_of(plan)
    if cost is None:
        return []
    hours = f"{format_duration(3600 * cost['hours'])} for {plan.ask.samples:,.0f} samples"
    price = f", {cost['price']:,.2f} at {plan.ask.price:g} a device-hour" if "price" in cost else ""
    return [f"cost        {hours}: {cost['device_hours']:,.1f} device-hours{price}"]


def _statistical_lines(plan: Plan) -> list[str]:
    numbers, useful = plan.statistical, plan.useful
    if numbers is None or plan.ask.noise_scale is None:
        return []
    lines = [
        f"learning    hardware {numbers.hardware:.1%} x statistical {numbers.statistical:.1%} = {numbers.product:.1%} "
        f"(noise scale {format_rows(plan.ask.noise_scale)})"
    ]
    if useful is None:
        return lines
    beyond = "or more" if useful.is_end else "; beyond that a doubling saves less than 5 % of the time to a loss"
    return [
        *lines,
        f"            useful up to {format_count(useful.devices, 'device')} {beyond}".replace(" ;", ";"),
    ]


def curve_lines(plan: Plan) -> list[str]:
    """E_K by K as bars, with S_K and the interval."""
    lines = [f"{'devices':>8} {'samples/s':>14}   E_K   80 % interval"]
    for time in plan.curve:
        rate = rate_digits(plan.rate(time))
        bar = "#" * round(_BAR * min(time.efficiency, 1.0))
        span = f"{time.efficiency_low:6.1%} to {time.efficiency_high:6.1%}"
        mark = " <" if time.devices == plan.devices else ""
        lines.append(f"{time.devices:>8,} {rate:>14} {time.efficiency:6.1%} {span} {bar:<{_BAR}}{mark}".rstrip())
    return lines
