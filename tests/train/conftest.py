"""What every test of training must leave as it found it."""

from __future__ import annotations

import gc
import signal
import threading

import pytest

from paceline.data.feed import THREAD_NAME


def _feed_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == THREAD_NAME}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No feed thread, and the handler of Ctrl-C that was there before."""
    before, handler = _feed_threads(), signal.getsignal(signal.SIGINT)
    yield
    left = _feed_threads() - before
    if left:  # a collection takes a tenth of a second: only where a feed may have been abandoned
        gc.collect()
        for thread in left:
            thread.join(5.0)
            assert not thread.is_alive(), "a feed thread is left"
    assert signal.getsignal(signal.SIGINT) is handler
