"""`paceline watch`, and the page beside a run (`train --watch`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from paceline.cli import page
from paceline.cli.page import RunPage, page_beside, watched_root
from paceline.dashboard import serve, terminal
from paceline.dashboard.serve import server
from tests.dashboard.made_runs import make_run

DEADLINE_S = 30.0


@pytest.fixture
def served(monkeypatch):
    """What the server was asked for, in place of serving."""
    asked = []
    monkeypatch.setattr(server, "serve", lambda root, **options: asked.append((root, options)) or 0)
    return asked


def wait_for(condition, what):
    """Until it holds, with a deadline; returns it."""
    end_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)
    return found


def test_without_a_folder_it_is_runs_on_this_machine_alone(paceline, served):
    """Loopback, a port that is free, no browser."""
    Path("runs").mkdir()
    assert paceline("watch").code == 0
    ((root, options),) = served
    assert root == Path("runs")
    assert (options["host"], options["port"], options["open_browser"]) == ("127.0.0.1", None, False)


@pytest.mark.parametrize("line", ["here --port 8090 --run a/b --open", "--port=8090 --run a/b --open here"])
def test_the_folder_may_stand_before_the_options_or_behind_them(paceline, served, line):
    """No option's value is taken for it."""
    Path("here").mkdir()
    assert paceline("watch", *line.split()).code == 0
    ((root, options),) = served
    assert (root, options["port"], options["run"], options["open_browser"]) == (Path("here"), 8090, "a/b", True)


def test_a_folder_that_is_not_there_yet_has_a_page_already(paceline, served):
    """The first run makes it, and shows on the page."""
    ran = paceline("watch")
    assert ran.code == 0 and [root for root, _ in served] == [Path("runs")]
    assert "runs is not there yet: the page shows the first run" in ran.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("missing/runs", "'missing/runs' is no folder"),
        ("file", "'file' is no folder"),
        ("a b", "was given 2 folders"),
        ("--port 70000", "--port 70000"),
        ("--prot 8080", "unknown option --prot, perhaps 'port'"),
        ("--once", "--once without --terminal"),
        ("--terminal --port 8080", "--port with --terminal"),
        ("--terminal --open", "--open with --terminal"),
        ("later --terminal --once", "'later' is not there"),
    ],
)
def test_a_mistake_is_told_with_the_fix(refused, line, said):
    """Before anything listens."""
    Path("file").write_text("")
    Path("runs").mkdir()
    assert said in refused("watch", *line.split())


@pytest.mark.parametrize("form", [[], ["--terminal", "--once"]])
def test_a_run_that_is_not_in_the_folder_is_told_with_the_nearest(refused, served, form):
    """The page would show another run without a word."""
    make_run(Path("runs/linear"), steps=3)
    assert "perhaps 'linear'" in refused("watch", "runs", "--run", "linaer", *form)
    assert not served


def test_a_run_may_yet_begin_where_there_is_none(paceline, served):
    """Its name is passed on; one that is there too."""
    Path("runs").mkdir()
    assert paceline("watch", "--run", "linear").code == 0
    make_run(Path("runs/linear"), steps=3)
    assert paceline("watch", "--run", "linear").code == 0
    assert [options["run"] for _, options in served] == ["linear", "linear"]


def test_a_port_that_is_taken_is_told_with_the_fix(refused):
    """The one that was asked for; without asking, another is taken."""
    Path("runs").mkdir()
    with server.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: another program listens there" in refused("watch", "--port", str(port))


def test_a_missing_package_of_the_extra_is_told_with_the_fix(refused, monkeypatch):
    """For the page, and for the page beside a run before that begins."""
    Path("runs").mkdir()
    monkeypatch.delitem(sys.modules, "paceline.dashboard.serve.server")
    monkeypatch.delattr(serve, "server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'paceline[watch]'" in refused("watch")
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'paceline[watch]'" in refused("train", "linear", "--watch", "--steps", "1")
    assert not os.listdir("runs")


def test_the_terminal_form_is_passed_what_was_asked_for(paceline, monkeypatch):
    """Without the extra."""
    Path("runs").mkdir()
    asked = []
    monkeypatch.setattr(terminal, "watch", lambda root, **options: asked.append((root, options)))
    assert paceline("watch", "--terminal", "--once", "--run", "a").code == 0
    assert asked == [(Path("runs"), {"run": "a", "once": True})]


def test_watching_never_imports_jax(tmp_path):
    """The page, the terminal form, and all that they load: it must start at once, on any machine."""
    make_run(tmp_path / "runs" / "a", steps=3)
    code = (
        "import os, signal, sys, threading, time, urllib.request\n"
        "from paceline.cli import main\n"
        "from paceline.dashboard.serve import server\n"
        "def ask(home):\n"
        "    while b'\"a\"' not in urllib.request.urlopen(home + 'api/runs').read():\n"
        "        time.sleep(0.02)\n"
        "    for path in ('', 'api/compare?subject=a', 'api/series?run=a&key=train/loss', 'metrics'):\n"
        "        urllib.request.urlopen(home + path).read()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "def look(line):\n"
        "    if line.startswith('page'):\n"
        "        threading.Thread(target=ask, args=(line.split()[1],), daemon=True).start()\n"
        "server.serve.__kwdefaults__['say'] = look\n"
        "assert main.main(['watch', 'runs', '--port', '0']) == 0\n"
        "assert main.main(['watch', 'runs', '--terminal', '--once']) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "found = sorted(loaded & {'jax', 'jaxlib', 'optax', 'orbax', 'flax'})\n"
        "assert not found, found\n"
        "assert 'plotly' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_page_is_beside_a_run_and_ends_with_it(tmp_path):
    """The terminal shows its address and how to show it again; exit code and report are the run's; no process stays."""
    command = [sys.executable, "-m", "paceline.cli.main", "train", "linear", "--simulate", "1", "--watch"]
    command += ["--epochs", "1000000", "--run", "runs/a", "--progress", "plain"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("page "))
        home, _, fragment = address.partition("#")
        assert fragment == "run=a"
        wait_for(
            lambda: [run["id"] for run in json.load(urllib.request.urlopen(f"{home}api/runs"))["runs"]] == ["a"], "a"
        )
        (child,) = children(run.pid)
        assert os.getpriority(os.PRIO_PROCESS, child) == 5 + os.getpriority(os.PRIO_PROCESS, run.pid)
        assert os.getsid(child) != os.getsid(run.pid)
        run.send_signal(signal.SIGINT)
        rest = "".join(lines)
        assert run.wait(DEADLINE_S) == 130
    finally:
        run.kill()
        run.wait()
    assert "paceline watch runs shows it again" in rest
    wait_for(lambda: not alive(child), "the page ends")


def test_a_run_that_is_killed_takes_its_page_with_it(tmp_path):
    """Nobody tells the page then: it sees by itself."""
    (tmp_path / "runs").mkdir()
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'paceline.cli.main', 'watch', 'runs', '--port', '0',"
        " '--beside', str(os.getpid())])\n"
        "time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("page ")
    (child,) = children(run.pid)
    run.kill()
    run.wait()
    wait_for(lambda: not alive(child), "the page ends")


def test_a_page_that_fails_ends_nothing(tmp_path, monkeypatch):
    """Its words are passed on, and the run goes on."""
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(page.sys, "executable", "/bin/false")
    (tmp_path / "run.json").write_text("{}")
    said = []
    with RunPage(tmp_path, say=said.append):
        wait_for(lambda: said, "words")
    assert re.match(r"the page ended \(1\); training goes on", said[0])


def test_a_page_that_was_killed_does_not_end_with_the_run(tmp_path):
    """It is said once that it ended, and how to have it again."""
    (tmp_path / "run.json").write_text("{}")
    said = []
    with RunPage(tmp_path, say=said.append) as beside:
        wait_for(lambda: any(line.startswith("page ") for line in said), "page")
        os.kill(beside._process.pid, signal.SIGKILL)
        wait_for(lambda: beside._process.poll() is not None, "its end")
    wait_for(lambda: len([line for line in said if "ended (-9)" in line]) == 1, "words")
    assert not any("ends with the run" in line for line in said)


def test_a_run_that_never_has_a_folder_gets_no_page(tmp_path):
    """It ended before: there is nothing to show and nothing to say."""
    said = []
    with RunPage(tmp_path / "never", say=said.append):
        pass
    assert said == []


def test_the_page_is_told_nothing_that_is_for_the_run_s_processes(tmp_path, monkeypatch):
    """A supervisor's variables would make it write the status of process 0."""
    started = []
    monkeypatch.setenv("PACELINE_LAUNCH_FOLDER", str(tmp_path))
    monkeypatch.setenv("PACELINE_PROCESS_INDEX", "0")
    monkeypatch.setattr(page.subprocess, "Popen", lambda command, **options: started.append(options["env"]) or 1 / 0)
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with RunPage(tmp_path):
        wait_for(lambda: started, "start")
    assert not [name for name in started[0] if name.startswith("PACELINE_")]


@pytest.mark.parametrize(
    ("run", "here", "root"),
    [
        ("/home/me/runs/a", "/home/me", "/home/me/runs"),
        ("/shared/runs/a", "/home/me", "/shared/runs"),
        ("/home/me/a", "/home/me", "/home/me/a"),
        ("/home/a", "/home/me", "/home/a"),
        ("/a", "/home/me", "/a"),
    ],
)
def test_the_runs_beside_a_run_are_watched_too_unless_anything_may_lie_there(run, here, root):
    """Searching a home folder once a second would cost more than the page is worth."""
    assert watched_root(Path(run), here=Path(here)) == Path(root)


@pytest.mark.parametrize(("asked", "process", "shown"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_one_page_is_shown_for_all_processes_if_it_was_asked_for(tmp_path, asked, process, shown):
    """By process 0, which has its folder first."""
    assert isinstance(page_beside(tmp_path, asked=asked, process=process), RunPage) == shown


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started."""
    lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def alive(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False
