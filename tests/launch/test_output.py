"""Output of processes: live on the terminal, whole in the logs."""

from __future__ import annotations


def test_output_without_end_is_shown_and_kept_whole(launch):
    """6 MB, the last words without an end of line and from a process that ends without Python's help."""
    ran = launch(
        """
        for number in range(60_000):
            sys.stdout.write(f"{number:05d} {'x' * 93}\\n")
        sys.stdout.write("last words")
        sys.stdout.flush()
        os._exit(0)
        """,
        1,
    )
    assert ran.out == ran.log(0) and len(ran.out) == 6_000_010 and ran.out.endswith("last words")


def test_output_comes_while_the_process_runs(launch, monkeypatch):
    """Python's own buffer is off: what is printed before SIGKILL is in the log."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    ran = launch("print('before')\nos.kill(os.getpid(), signal.SIGKILL)", 1)
    assert ran.out == "before\n" and ran.log(0) == "before\n"
