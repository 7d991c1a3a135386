"""What the terminal shows of a log."""

from __future__ import annotations

import io

import pytest

from paceline.launch.screen import Screen


@pytest.fixture
def shown(tmp_path):
    """A screen that follows a log, the log, and both outputs."""
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    out, err = io.BytesIO(), io.StringIO()
    screen = Screen(out, err)
    screen.follow(log, start=len(b"before\n"))
    return screen, open(log, "ab", buffering=0), out, err


def test_output_is_shown_once_and_in_order(shown):
    """From the place asked for; each byte once, also those that are no UTF-8."""
    screen, log, out, _ = shown
    for part in (b"one\n", b"", b"tw\xff", b"o\n"):
        log.write(part)
        screen.show()
    screen.finish()
    assert out.getvalue() == b"one\ntw\xffo\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_of_gloo_are_left_out_however_they_come(shown, size):
    """In pieces of any size. What only begins as they do, or holds their words within a line, is shown."""
    screen, log, out, _ = shown
    noise = b"[Gloo] Rank 0 is connected to 1 peer ranks.\n"
    text = noise + b"one\n" + noise * 2 + b"[Gloo] else\n\nsee [Gloo] Rank 0 x\n" + noise + b"[Gloo] Ran"
    for begin in range(0, len(text), size):
        log.write(text[begin : begin + size])
        screen.show()
    screen.finish()
    assert out.getvalue() == b"one\n[Gloo] else\n\nsee [Gloo] Rank 0 x\n[Gloo] Ran"


def test_output_without_an_end_of_line_is_not_kept_back(shown):
    """A progress bar shows at once; so does the next piece of a line that began otherwise."""
    screen, log, out, _ = shown
    for part in (b"50 %\r", b"[", b"Gloo] Rank 1"):
        log.write(part)
        screen.show()
    assert out.getvalue() == b"50 %\r[Gloo] Rank 1"


def test_a_line_of_gloo_that_was_cut_off_is_left_out(shown):
    """As when its process is killed; also of output that was held back."""
    screen, log, out, _ = shown
    log.write(b"one\n[Gloo] Rank 0 is conn")
    screen.write(screen.rest())
    screen.finish()
    assert out.getvalue() == b"one\n"


def test_a_log_that_grows_faster_than_it_is_shown_does_not_hold_the_supervisor(shown):
    """At most about a megabyte a look; the end brings the rest."""
    screen, log, out, _ = shown
    log.write(b"x" * 5_000_000)
    screen.show()
    assert 1_000_000 <= len(out.getvalue()) < 1_200_000
    screen.finish()
    assert len(out.getvalue()) == 5_000_000


def test_words_of_the_supervisor_begin_a_line(shown):
    """After a progress bar without an end of line, and not after whole lines."""
    screen, log, _, err = shown
    log.write(b"50 %\r")
    screen.show()
    screen.say("stopping")
    screen.say("bare", bare=True)
    assert err.getvalue() == "\npaceline launch: stopping\nbare\n"


def test_a_terminal_that_is_gone_stops_nothing(shown):
    """As behind `| head`: nothing is raised, and nothing tried again."""

    class Gone(io.BytesIO):
        calls = 0

        def write(self, content):
            self.calls += 1
            raise BrokenPipeError

    screen, log, _, _ = shown
    gone = Gone()
    screen._out = gone
    log.write(b"a\n")
    screen.show()
    log.write(b"b\n")
    screen.finish()
    assert gone.calls == 1


def test_held_output_can_be_taken_without_being_shown(shown):
    """For a failure: what stands in the log and was not shown, once."""
    screen, log, out, _ = shown
    log.write(b"Traceback\n")
    assert screen.rest() == b"Traceback\n" and screen.rest() == b"" and out.getvalue() == b""
