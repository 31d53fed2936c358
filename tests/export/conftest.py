"""Exported files are run by standing processes, but for tests marked ``apart``."""

import pytest


@pytest.fixture(autouse=True)
def runners(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("apart") is None:
        request.getfixturevalue("standing_runners")
