"""The real scripts keep every law through all interleavings, lost replies included."""

import pytest

from tests.explorer.scenarios import SCENARIOS
from tests.explorer.search import Search
from tests.explorer.server import Lab


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_a_law(lab: Lab, name: str) -> None:
    outcome = Search(lab, SCENARIOS[name]).run()

    assert not outcome.problems, str(outcome)
    assert outcome.states > 50
