"""A disk on which chosen renames fail, for whoever replaces what was there by a draft."""

import os

import pytest

# Which renames of one write fail: that of the old thing away, that of the draft to its place, that of the old one back.
FAILURES = [(0,), (1,), (1, 2)]
ERRORS = [OSError("no rename today"), KeyboardInterrupt("no rename today")]

each_failing_rename = pytest.mark.parametrize(
    ("failures", "error"),
    [(failures, error) for failures in FAILURES for error in ERRORS],
    ids=[f"{type(error).__name__}-{failures}" for failures in FAILURES for error in ERRORS],
)


def let_renames_fail(monkeypatch, failures, error):
    """From here on; returns the number of renames that were tried, as a list to look at."""
    tried = []

    def failing(rename):
        def tries(source, target):
            tried.append((source, target))
            if len(tried) - 1 in failures:
                raise error
            rename(source, target)

        return tries

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return tried
