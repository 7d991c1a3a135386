"""Public bug reports, as their authors would meet them: task files and steps through verify, doctor and train.

What is asserted is content: the cause named, leaf, sizes, line, fix, and the right number; never JAX's own wording.
"""

from __future__ import annotations

import json
import re
import sys

import jax
import pytest

from paceline.check.parity import causes
from tests.check import case_files as files
from tests.cli.conftest import paceline as paceline

pytestmark = pytest.mark.once(
    reason="verify, doctor and train are proven at both ends where they are tested; here they are called as users do"
)

FEW = ("--accumulation", "1", "--placements", "replicated", "--updates", "2")
TRAIN = ("--steps", "1", "--progress", "none", "--run", "run", "--json", "out.json")
SCHEMES = ("global_view", "per_device", "pmap")


@pytest.fixture
def user(paceline, tmp_path):
    """`user(source, command, *options)` runs a command on a file `mine.py` with that source."""

    assert len(jax.devices()) == 8, "in use from here on, so that verify does not choose their number"

    def run(source: str, command: str, *options: str, header: str = files.HEADER):
        (tmp_path / "mine.py").write_text(header + source, encoding="utf-8")
        return paceline(command, "mine.py", *options)

    yield run
    sys.modules.pop("mine", None)  # --step imports it by its name


@pytest.fixture
def verified(user):
    """`verified(source, devices, *options)`: what verify said, and the causes that it named."""

    def run(source: str, devices: int, *options: str):
        ran = user(source, "verify", "--devices", str(devices), *FEW, *options)
        assert ran.code in (0, 1), ran.err
        named = {line[7:].partition(" (")[0] for line in ran.out.splitlines() if line.startswith("cause: ")}
        assert (ran.code == 0) == ("\nverified: " in ran.out)
        assert "nothing was run" in ran.out or (ran.code == 0) == (not named), ran.out
        return ran, named

    return run


@pytest.fixture
def trained(user, tmp_path):
    """`trained(source, devices, *options)`: report and outcome of a run, as ``--json`` has them."""

    def run(source: str, devices: int, *options: str):
        ran = user(source, "train", "--devices", str(devices), *TRAIN, *options)
        assert ran.code == 0, ran.err
        document = json.loads((tmp_path / "out.json").read_text())
        return document["report"], document["outcome"]

    return run


def tolerances(out: str) -> list[float]:
    """The tolerances of the tables: the column before the verdict."""
    return [float(number) for number in re.findall(r"(\S+) +(?:equal|differs|drifts)", out)]


def test_case_4_a_step_for_pmap_is_given_its_device_axis(verified):
    """jax#9933: the state of one device is replicated by verify, so nothing can be forgotten: 4 devices equal one."""
    ran, named = verified(files.REPLICATION, 4, "--step", "mine:step", "--state", "mine:create")
    assert ran.code == 0 and named == set()


def test_case_4_a_state_with_a_device_axis_of_its_own_is_named(user):
    """The user's function replicates too: leaf `w`, its shape (4, 3), the shape (3,) expected; exit code 2."""
    ran = user(files.REPLICATION, "verify", "--devices", "4", "--step", "mine:step", "--state", "mine:replicated")
    assert ran.code == 2
    assert (
        "'w'" in ran.err and "(4, 3)" in ran.err and "(3,)" in ran.err and "return the state of one device" in ran.err
    )


def test_case_5_a_model_with_the_axis_data_works_on_one_device_and_on_four(verified, trained):
    """jax#3120: a norm with axis_name="data" has the statistics of all rows under every scheme; verified."""
    source = files.AXIS_NAME.replace("AXIS", "data")
    ran, named = verified(source, 4)
    assert ran.code == 0 and named == set() and "rows in 4 groups" not in ran.out
    losses = {
        trained(source, devices, "--batch", "64", "--run", f"{devices}")[0]["final"]["train/loss"] for devices in (1, 4)
    }
    assert max(losses) == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize("command", ["verify", "doctor"])
def test_case_5_another_axis_name_is_named_with_the_one_to_use(user, command):
    """flax#2606: 'batch' is named, and axis_name='data' is the fix; on one device as on four."""
    ran = user(files.AXIS_NAME.replace("AXIS", "batch"), command, "--devices", "1" if command == "doctor" else "4")
    assert ran.code == {"verify": 2, "doctor": 1}[command]
    assert "device axis 'batch'" in ran.out + ran.err and "axis_name='data'" in ran.out + ran.err


def test_case_5_a_pmap_without_the_axis_that_its_step_names(user):
    """verify and doctor name 'batch' and the way to map it."""
    ran = user(files.REPLICATION, "verify", "--devices", "4", "--step", "mine:nameless")
    assert ran.code == 2 and "'batch'" in ran.err and "axis_name='batch'" in ran.err
    ran = user(files.REPLICATION, "doctor", "--devices", "4")
    line = (files.HEADER + files.REPLICATION).splitlines().index("def nameless(params, opt_state, batch):") + 2
    assert ran.code == 1 and f"mine.py:{line}: lax.pmean names the axis 'batch'" in ran.out


def test_case_6_a_key_that_the_loss_closes_over(verified, user):
    """scalax#6: named as the same mask everywhere and in every step, with the user's line; doctor warns of it too."""
    source = files.DROPOUT.replace("LOSS = noisy", "LOSS = closed")
    line = (files.HEADER + source).splitlines().index(
        '    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)'
    ) + 1  # fmt: skip
    ran, named = verified(source, 4, "--schemes", "per_device")
    assert named == {causes.SAME_MASK.name, causes.KEY_EVERY_STEP.name} and f"mine.py:{line})" in ran.out
    examined = user(source, "doctor", "--devices", "4")
    assert f"warning  keys: {examined.out.partition('warning  keys: ')[2].partition(':')[0]}:{line}: " in examined.out


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("closed_step", {causes.SAME_MASK, causes.KEY_EVERY_STEP}),
        ("shared_step", {causes.SAME_MASK}),
        ("folded_step", {causes.MASK_CHANGES}),
    ],
)
def test_case_6_the_keys_of_a_step_for_pmap(verified, step, expected):
    """One mask on all devices is named; four that depend on K are named so. Rows of ones: nothing else can differ, and
    no other cause is named. The float32 table tells it too: its tolerance is rounding, not the noise of the masks."""
    ran, named = verified(files.DROPOUT, 4, "--step", f"mine:{step}")
    assert ran.code == 1 and named == {cause.name for cause in expected}
    assert "2 of 2 programs" in ran.out and max(tolerances(ran.out)) < 1e-3


def test_case_6_the_key_that_a_loss_is_given_is_right(verified):
    """The masks are those of one device under every scheme: equal, with a float32 tolerance below 1e-3."""
    ran, named = verified(files.DROPOUT, 4)
    assert ran.code == 0 and named == set() and max(tolerances(ran.out)) < 1e-3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_7_running_statistics_are_those_of_all_rows(trained, scheme):
    """flax#877: device d sees two rows of value d: mean 0.15, variance 1.025 (float32, 1e-6), under every scheme."""
    _, outcome = trained(files.STATISTICS, 4, "--batch", "8", "--scheme", scheme)
    assert outcome == {"mean": pytest.approx(0.15, abs=1e-6), "var": pytest.approx(1.025, abs=1e-6)}


def test_case_7_verify_accepts_the_right_merge_and_names_the_wrong_ones(verified):
    """Declared statistics: equal. A step that averages variances, or keeps its own, is named with the leaf."""
    assert verified(files.STATISTICS, 4)[1] == set()
    ran, named = verified(files.STATISTICS, 4, "--step", "mine:averaged")
    assert named == {causes.VARIANCE_AVERAGED.name} and "model_state.var" in ran.out
    ran, named = verified(files.STATISTICS, 4, "--step", "mine:apart")
    assert named == {causes.BATCH_NORM_DRIFTS.name} and "model_state.mean differs between devices" in ran.out


def test_case_7_statistics_that_are_not_declared_are_refused_by_both(verified, user):
    """Under per_device: the leaf 'var', and the declaration to write; verify has run nothing, so it proves nothing."""
    source = files.STATISTICS.replace("statistics=statistics, ", "")
    ran, _ = verified(source, 4, "--schemes", "per_device")
    assert ran.code == 1 and "NOT VERIFIED: nothing was run" in ran.out
    examined = user(source, "doctor", "--devices", "4", "--batch", "8", "--scheme", "per_device")
    assert examined.code == 1
    for out in (ran.out, examined.out):
        assert "'var' looks like a running variance" in out and "declare paceline.RunningStatistics" in out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_8_a_sum_over_devices(trained, scheme):
    """jax#3970: (w^2 + 1) d over d = [0, 1] at w = 1: loss 2 and gradient 2, so that rate 1 leads to w = -1."""
    report, outcome = trained(files.SUM_OVER_DEVICES, 2, "--batch", "2", "--scheme", scheme)
    assert (report["final"]["train/loss"], report["final"]["train/gradient_norm"], outcome["w"]) == (2, 2, -1)


def test_case_8_a_step_that_sums_once_is_right_and_twice_is_named(verified):
    """psum of local gradients: verified. psum of the loss, and of its gradient again: K times. Never: named too."""
    assert verified(files.SUM_OVER_DEVICES, 2)[1] == set()
    assert verified(files.SUM_OVER_DEVICES, 2, "--batch", "2", "--step", "mine:summed")[1] == set()
    twice = verified(files.SUM_OVER_DEVICES, 2, "--batch", "2", "--step", "mine:summed_twice")[1]
    never = verified(files.SUM_OVER_DEVICES, 2, "--batch", "2", "--step", "mine:not_summed")[1]
    assert (twice, never) == ({causes.GRADIENT_TIMES_K.name}, {causes.NEVER_REDUCED.name})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_9_tokens_weigh_alike_on_whichever_device_they_are(trained, scheme):
    """transformers#19494: 11 tokens of loss 2.0 and 101 of 1.0: 123 / 112 = 1.0982, and the gradient is the same."""
    report, outcome = trained(files.TOKENS, 2, "--batch", "2", "--scheme", scheme)
    assert report["final"]["train/loss"] == pytest.approx(123 / 112, rel=1e-6)
    assert outcome["w"] == pytest.approx(1 - 123 / 112, rel=1e-5)


def test_case_9_the_mean_of_means_is_named_in_a_task_and_in_a_step(verified):
    """Weighted totals: verified. A mean of its own, and a step that means it over devices: named, with the fix."""
    assert verified(files.TOKENS, 2, "--batch", "2")[1] == set()
    own = files.TOKENS.replace("LOSS = weighted", "LOSS = own_mean")
    for source, options in ((own, ("--schemes", "per_device")), (files.TOKENS, ("--step", "mine:mean_of_means"))):
        ran, named = verified(source, 2, "--batch", "2", *options)
        assert named == {causes.MEAN_OF_MEANS.name} and "paceline.Weighted(total, weight)" in ran.out


@pytest.mark.parametrize("losses", ["[2, 1]", "[1, 1]"])
def test_case_9_a_step_that_sums_tokens_is_verified(verified, losses):
    """Also where all losses are 1: the first update leads to w = 0, and what rounding leaves there is no deviation."""
    source = files.TOKENS.replace("[2, 1]", losses)
    assert verified(source, 2, "--batch", "2", "--step", "mine:right")[1] == set()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_10_the_clip_follows_the_mean(trained, scheme):
    """praxis#6: gradients (6, 8), (0.3, -0.4), 0, 0 and norm 1: mean (1.575, 1.9), clipped (0.6382, 0.7699)."""
    _, outcome = trained(files.CLIPPING, 4, "--batch", "4", "--clip-norm", "1", "--scheme", scheme)
    assert outcome == {"w0": pytest.approx(-0.6382, abs=5e-5), "w1": pytest.approx(-0.7699, abs=5e-5)}


def test_case_10_a_clip_before_the_mean_is_named(verified):
    """And the clip behind it verified, for Paceline's step and the user's."""
    options = ("--batch", "4", "--clip-norm", "1")
    assert verified(files.CLIPPING, 4, *options)[1] == set()
    assert verified(files.CLIPPING, 4, *options, "--step", "mine:clip_last")[1] == set()
    assert verified(files.CLIPPING, 4, *options, "--step", "mine:clip_first")[1] == {causes.CLIP_BEFORE_MEAN.name}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_case_13_one_bad_gradient_is_left_out_on_every_device(trained, scheme):
    """dion#79: gradients [1, NaN, 1, 1], skip asked for: p stays 1.0, the skip is counted, all replicas are equal."""
    report, outcome = trained(files.NOT_FINITE, 4, "--batch", "4", "--nonfinite", "skip", "--scheme", scheme)
    assert (outcome["p"], report["skipped_updates"], report["audit"]["differing"]) == (1.0, 1, 0)


def test_case_13_what_is_not_finite_is_never_verified(user):
    """Nothing can be compared with NaN: exit code 2, and the command that the fix names finds leaf and row."""
    ran = user(files.NOT_FINITE, "verify", "--devices", "4", *FEW, "--batch", "4")
    assert ran.code == 2 and ran.out == "" and "paceline train names its leaf and row" in ran.err
    ran = user(files.NOT_FINITE, "train", "--devices", "4", "--batch", "4", "--progress", "none", "--run", "run")
    assert ran.code == 2 and "'g' is not finite in row 1" in ran.err


def test_case_21_removed_names_are_found_with_line_and_replacement(user, tmp_path):
    """brax#671: lines 7 and 10, each with what to write instead; the script is read and never run."""
    ran = user(files.GONE, "doctor", header="")
    assert ran.code == 1 and not (tmp_path / "was_run").exists()
    lines = ran.out.splitlines()
    for number, name, instead in (
        (7, "jax.device_put_replicated", "jax.device_put(x, jax.NamedSharding(mesh, jax.P()))"),
        (10, "jax.device_put_sharded", 'jax.NamedSharding(mesh, jax.P("data"))'),
    ):
        (at,) = [place for place, line in enumerate(lines) if f"mine.py:{number}: {name} is gone" in line]
        assert lines[at].startswith("error") and instead in lines[at + 1]


def test_case_22_old_spellings_of_shard_map_are_found_with_the_new_ones(user):
    """flax#5058: the module (line 4), check_rep= (13) and auto= (14), and what becomes of gradients under check_vma."""
    ran = user(files.OLD_SHARD_MAP, "doctor", header="")
    assert ran.code == 1
    findings = dict(zip(ran.out.splitlines(), ran.out.splitlines()[1:], strict=False))
    for place, instead in (
        ("mine.py:4: jax.experimental.shard_map", "jax.shard_map(f, mesh=mesh"),
        ("mine.py:13: check_rep=", "check_vma=False"),
        ("mine.py:14: shard_map no longer takes auto=", "axis_names="),
    ):
        (fix,) = [after for line, after in findings.items() if place in line]
        assert instead in fix
    assert "pmean of it is K times the gradient, psum K^2 times" in ran.out and 'to="varying"' in ran.out


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_case_24_accuracy_over_a_ragged_tail(trained, devices):
    """flax#264: 11 rows in batches of 4, of which 4, 2 and 1 are right: 7/11 on any number of devices."""
    report, _ = trained(files.ACCURACY, devices, "--batch", "4")
    assert report["evaluation"]["evaluate/accuracy"] == pytest.approx(7 / 11, rel=1e-6)
    assert round(report["evaluation"]["evaluate/accuracy"], 4) == 0.6364


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("right", None),
        ("mean_of_means", causes.MEAN_OF_MEANS),
        ("with_padding", causes.PADDING_COUNTED),
        ("once_a_device", causes.METRIC_SUMMED),
    ],
)
def test_case_24_each_way_to_get_an_accuracy_wrong_has_its_name(verified, step, expected):
    """One batch of 40 rows has 34; the update is right, the metric is not. Right is n/34, of which float32 has few."""
    ran, named = verified(files.ACCURACY, 4, "--batch", "40", "--step", f"mine:{step}")
    assert named == ({expected.name} if expected else set()), ran.out
    assert ran.code == (0 if expected is None else 1)
    assert expected is None or "metrics.accuracy" in ran.out
