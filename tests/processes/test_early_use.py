"""A script that uses a device before it joins the others is told which line to move."""

from __future__ import annotations

import textwrap

from tests.processes.environment import CHILD
from tests.processes.run import run


def test_the_line_to_move_is_named(tmp_path):
    """jax#12258: the file, line 4 of it, and where it belongs, in both processes and at once."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
            import jax.numpy as jnp
            import paceline

            X = jnp.arange(4.0)
            paceline.initialize()
        """)
    )
    ended = run([str(script)], processes=2, env=CHILD, timeout_s=60)
    assert [process.returncode for process in ended] == [2, 2], ended
    for process in ended:
        assert "a device was used before the 2 processes of this run were joined" in process.stderr
        assert f"{script}:4: X = jnp.arange(4.0)" in process.stderr
        assert f"call paceline.initialize() first; move line 4 of {script} below it" in process.stderr


def test_one_process_that_uses_a_device_early_ends_all(tmp_path):
    """The other hears it at the meeting, and does not wait for its time limit."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
            import os
            import jax
            import paceline

            if os.environ["PACELINE_PROCESS_INDEX"] == "1":
                print(len(jax.devices()))
            paceline.initialize(join_timeout_s=50)
        """)
    )
    ended = run([str(script)], processes=2, env=CHILD, timeout_s=40)
    assert [process.returncode for process in ended] == [2, 2], ended
    for process in ended:
        assert "process 1 on " in process.stderr
        assert f"{script}:6: print(len(jax.devices()))" in process.stderr
