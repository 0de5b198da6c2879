"""Deleting any one check from any script makes the explorer fail.

Each mutant is one changed script, run through the scenarios that exercise it until a law breaks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.explorer.mutants import ALL, Mutant
from tests.explorer.scenarios import SCENARIOS
from tests.explorer.search import Outcome, Scenario, Search
from tests.explorer.server import SCRIPTS, Lab

DEATH, LEAD, SLEEPER = "an engine dies", "the lead changes hands", "a sleeper wakes"
CANCEL, STOP, CHOICES = "cancel against dispatch and commit", "a stop string ends a sequence", "two choices"
PROMPTS, MIXED, DOOR = "two prompts", "a mixed batch", "the door"
READERS, BACK = "two readers", "the server goes back in time"
LOSS = "an engine sleeps through a loss"
ENGINES, GATEWAYS = "engines come and go", "gateways come and go"
SETTINGS = "settings change"
EXERCISED_BY = {
    "_lib": (STOP, PROMPTS, CHOICES, READERS, BACK, MIXED, DEATH),
    "acquire": (LEAD,),
    "ask_report": (SLEEPER, ENGINES),
    "attach": (READERS,),
    "beat_engine": (ENGINES,),
    "beat_gateway": (GATEWAYS,),
    "change_settings": (SETTINGS,),
    "commit": (STOP, LOSS, CANCEL, CHOICES, ENGINES, MIXED, DEATH, BACK),
    "detach": (READERS,),
    "dispatch": (LEAD, MIXED, ENGINES, CHOICES, CANCEL, DEATH),
    "drain_engine": (ENGINES,),
    "end": (STOP, CANCEL, SLEEPER),
    "join_engine": (ENGINES,),
    "join_gateway": (GATEWAYS,),
    "leave_engine": (ENGINES, SLEEPER),
    "leave_gateway": (GATEWAYS,),
    "reassign": (LEAD, CANCEL, DEATH),
    "renew": (LEAD,),
    "report_engine": (ENGINES,),
    "resign": (LEAD,),
    "restore": (BACK,),
    "submit": (DOOR,),
    "trim_inbox": (SLEEPER,),
}
"""Scenarios per script, the quickest to notice first."""

EQUIVALENT: dict[tuple[str, str], str] = {}
"""(file, what was deleted) -> why no behaviour can differ without it."""


def deepening(names: Sequence[str]) -> Iterator[Scenario]:
    """All scenarios one step deep, then two, and so on: most mutants die early somewhere."""
    scenarios = [SCENARIOS[name] for name in names]
    for depth in range(1, max(scenario.depth for scenario in scenarios) + 1):
        yield from (replace(one, depth=depth) for one in scenarios if depth <= one.depth)


def kill(lab: Lab, mutant: Mutant) -> Outcome | None:
    """The first violation that the mutant causes; None when it survives."""
    lab.use(mutant.sources())
    try:
        for scenario in deepening(EXERCISED_BY[mutant.file]):
            outcome = Search(lab, scenario).run()
            if outcome.problems:
                return outcome
        return None
    finally:
        lab.use({})


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", EXERCISED_BY)
def test_no_check_can_be_deleted_unnoticed(lab: Lab, file: str) -> None:
    mutants = [m for m in ALL if m.file == file and (file, m.what) not in EQUIVALENT]

    survivors = [str(mutant) for mutant in mutants if kill(lab, mutant) is None]

    assert not survivors, "\n".join(["these checks can go and no law notices:", *survivors])


def test_every_script_is_exercised_and_every_exemption_still_exists() -> None:
    assert set(EXERCISED_BY) == {"_lib", *SCRIPTS}
    assert set(EQUIVALENT) <= {(m.file, m.what) for m in ALL}
