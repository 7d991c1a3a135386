"""A cursor that the server does not take: the page goes on without it."""

from __future__ import annotations

import pytest

_OPEN = """async (cursor) => {
  const { openStream } = await import("/assets/shell/stream.js");
  const asked = [];
  return await new Promise((resolve) => {
    const stream = openStream({
      cursor,
      address: (from) => { asked.push(from); return `/api/stream?run=baseline&cursor=${from}`; },
      onState: () => {},
      onMessage: (name, data) => {
        if (name === "reset") setTimeout(() => { stream.close(); resolve({ asked, run: data.run }); }, 0);
      },
    });
  });
}"""


@pytest.mark.parametrize("cursor", ["of-another-version", "x" * 60_000])
def test_a_cursor_that_is_refused_twice_is_given_up(open_page, server, cursor):
    """Of another version, or too long for an address (400, 414): not asked with for ever; its run is fetched anew."""
    page = open_page(server, "baseline")
    found = page.evaluate(_OPEN, cursor)
    assert found == {"asked": [cursor, cursor, "anew"], "run": "baseline"}
    page.trouble.clear()  # the browser itself reports the two refusals
