"""In Chinese nothing is left in English but names, units and terms: what the server says of runs and results too."""

from __future__ import annotations

import json
import re

import pytest

from tests.dashboard.browser.conftest import PageServer, wait_until
from tests.dashboard.compare.made_results import interval, plan_document, scale_document, verify_document, write
from tests.dashboard.made_runs import make_run

NAMES = {
    "quick", "diverged", "small", "slow", "input", "scale", "verify", "plan", "json", "image", "config",  # of subjects
    "paceline", "program", "run", "fit", "jax", "XLA", "CPU", "cpu", "NaN", "nan",
    "per_device", "global_view", "pmap", "replicated", "zero1", "float32", "bfloat16", "accuracy", "loss",
    "NVIDIA", "SXM", "PCIe", "HBM", "NVLink", "GPU", "reduce", "all", "params", "conv", "conv1", "kernel",
    "samples", "GB", "MB", "kB", "ms", "min", "width", "E_K", "S_K", "int32", "label",
}  # fmt: skip
"""Words of Latin letters that a Chinese page may hold."""

_SEEN = """(panel) => {
  const found = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return found.push(node.data);
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".cmp-command, script")) return;
    for (const name of ["title", "aria-label", "placeholder"])
      if (node.hasAttribute(name)) found.push(node.getAttribute(name));
    node.childNodes.forEach(walk);
  };
  walk(panel);
  return found;
}"""


def english(page, selector):
    """Texts of a part of the page that hold a Latin word which is no name; also of closed details, titles, labels."""
    texts = page.locator(selector).evaluate(_SEEN)
    assert len(texts) > 1
    words = [text for text in texts if not text.startswith("/")]  # a path is a name
    return [text for text in words if set(re.findall(r"[A-Za-z_]{2,}\d*", text)) - NAMES]


@pytest.fixture(scope="module")
def chinese_server(tmp_path_factory):
    """Runs that differ in much, one with a divergence, results of each command; a run with all kinds of damage."""
    root = tmp_path_factory.mktemp("chinese")
    config = {"config": {"target": "image", "options": {}, "recipe": {"width": 64}}}
    make_run(root / "quick", steps=800, devices=2, batch=128, extra=config)
    make_run(root / "diverged", steps=400, step_s=0.03, scheme="global_view", precision="bfloat16", accumulation=2,
             diverges_at=150, nan_at=(395,), restart_at=120, stopped="terminated",
             extra={"config": {"target": "image", "options": {}, "recipe": {"width": 128}}})  # fmt: skip
    make_run(root / "small", steps=5, devices=1, batch=64, program=False, ended=False)
    scale = scale_document(conditions=[
        "per_device, replicated, float32; jax 0.10.0",
        "9 repeats in turn, of 10 steps; 3 min 20 s, of it compiling 4.2 s",
        "one core a device: each number of devices in a process of its own, held to as many cores",
    ], platform="simulated CPU devices, 4 cores")  # fmt: skip
    scale["scalings"][0]["points"].append({
        "devices": 8, "batch": 512, "samples_per_s": interval(5000.0), "step_s": {},
        "not_claimed": "8 simulated devices share 4 cores",
    })  # fmt: skip
    write(root / "scale.json", scale)
    write(root / "plan.json", plan_document(
        binding="all-reduce of params.conv1 and more over NVLink 4: 30% of the communication is not hidden behind "
        "compute, 5.0% of the step",
        notes=["the batch of 128 rows is more than the data have: 100 rows"], fits=False,
    ))  # fmt: skip
    verify = verify_document(differs=True)
    verify["causes"] = [{"cause": "mean of means"}, {"cause": "clip before the mean"}]
    verify["skipped"] = [{}]
    write(root / "verify.json", verify)
    slow = make_run(root / "slow", steps=60, processes=2, slow_process=1)
    with open(slow / "events-0.jsonl", "a") as events:
        events.write("damaged\n" + json.dumps({"kind": "nan", "step": 60, "time_s": 1.79e9, "values": {}}) + "\n")
    running = PageServer(root)
    yield running
    running.stop()


@pytest.fixture
def chinese(open_page, chinese_server):
    """Opens a tab of the page in Chinese."""
    return lambda tab, *runs: open_page(chinese_server, *runs, tab=tab, locale="zh-CN")


def test_a_comparison_of_everything_is_in_chinese(chinese):
    """Differences, verdicts, notes, reasons, details, fidelity, predictions, drawings, what is not known."""
    page = chinese("compare", "quick", "diverged", "small")
    for name in ("scale.json", "plan.json", "verify.json"):
        page.get_by_role("checkbox", name=name).check()
    wait_until(lambda: page.locator(".cmp-table thead .cmp-subject").count() == 6, what="all six stand side by side")
    assert english(page, "#panel-compare") == []
    told = page.locator("#panel-compare").inner_text()
    assert "批量大小不同：128 行（quick、scale.json、plan.json）、256 行（diverged）、64 行（small）" in told
    assert "8 次审计中有 1 次发现副本不一致" in told
    assert "8 个模拟设备共用 4 个核心" in " ".join(page.locator("#panel-compare").evaluate(_SEEN))
    assert "未通过验证：3 个程序中有 1 个与单设备计算结果一致；原因：对均值再求均值、先裁剪后求均值；1 个未运行" in told
    assert "受限于经 NVLink 4 对 params.conv1 等的 all-reduce：30% 的通信未被计算掩盖" in told
    assert "在 quick 和 scale.json 之间：quick 最佳" in told
    assert re.search(r"plan\.json 的预测比 quick 低 69\.\d %", told)
    assert "plan.json 的预测比 scale.json 高 5.0 个百分点" in told


def test_two_runs_alone_are_compared_in_chinese(chinese):
    """Judged numbers, and evaluation metrics with their titles."""
    page = chinese("compare", "quick", "diverged")
    page.wait_for_selector(".cmp-table")
    assert english(page, "#panel-compare") == []
    told = page.locator(".cmp-table").inner_text() + page.locator(".cmp-notes").inner_text()
    assert "准确率（评估，最佳）" in told and "换一个随机种子可能得出相反的结果" in told
    assert "不作评判：设备数不同" in told and "提前结束：被终止" in told and "共启动过 2 次" in told


def test_bottleneck_straggler_and_problems_are_in_chinese(chinese):
    """But for words of events, which stand as the run wrote them."""
    page = chinese("pipeline", "slow")
    page.wait_for_selector("#panel-pipeline .pl-flag-word")
    assert english(page, "#panel-pipeline") == []
    page.locator(".cannot summary").click()
    assert english(page, ".cannot") == []
    assert "1 行损坏" in page.locator(".cannot").inner_text()
    page = chinese("replicas", "slow")
    page.wait_for_selector(".rc-why")
    assert "进程 1 每步等待输入" in page.locator(".rc-why").inner_text()
    assert english(page, "#panel-replicas") == []
