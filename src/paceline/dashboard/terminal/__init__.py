"""``paceline watch --terminal``: the runs in a terminal, for those without a browser."""

from __future__ import annotations

from paceline.dashboard.terminal.live import watch as watch
