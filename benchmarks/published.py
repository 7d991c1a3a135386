"""Fits the model to the published efficiencies: once to all, once without each source.

Prints the text of `src/paceline/insight/published/fitted.py`; ``FITTED`` of `insight.model.parameters` is the first.
About 20 s on one core. With ``--table`` prints the table of `plan --published` from the stored fits instead.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

from paceline.insight.published.fit import Fit, fit, fit_without
from paceline.insight.published.rows import read_rows


def code(found: Fit) -> str:
    """A fit as Python, four digits."""
    parameters = ", ".join(f"{name}={value:.4g}" for name, value in asdict(found.model.parameters).items())
    transports = ", ".join(f"{name}={value:.4g}" for name, value in asdict(found.model.transports).items())
    sure = ", ".join(f'"{name}": {value:.3f}' for name, value in found.log_sd.items())
    return f"Fit(Model(Parameters({parameters}), Transports({transports})), {{{sure}}})"


def main() -> None:
    """See the module."""
    if "--table" in sys.argv[1:]:
        # Not above: it needs the stored fits, which this program may be about to replace.
        from paceline.insight.published.table import published_lines

        print("\n".join(published_lines()))
        return
    rows = read_rows()
    print("ALL = " + code(fit(rows)))
    for source in dict.fromkeys(row.source for row in rows):
        print(f'"{source}": {code(fit_without(rows, source=source))},')


if __name__ == "__main__":
    main()
