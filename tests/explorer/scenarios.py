"""The situations that are explored: who takes part, how far, and which steps are on offer.

Each scenario names the scripts that it exercises closely; the mutation test starts with those.
"""

from collections.abc import Iterator

from shared.protocol.batch import Entry
from shared.protocol.request import GenerationRequest
from shared.protocol.settings import RuntimeSettings
from shared.protocol.token import State
from tests.explorer import actions as do
from tests.explorer.model import FINAL, KEYS, Action, View, World, request
from tests.explorer.search import Scenario, Setup

A, B = request("a"), request("b")
PAIR = (request("c.0", of=2), request("c.1", of=2))
TWO_PROMPTS = (request("d.0", of=2), request("d.1", of=2, prompt_index=1))
REQUESTS = {r.id: r for r in (A, B, *PAIR, *TWO_PROMPTS)}
E1, E2 = "e1.x", "e2.x"
UNKNOWN_FENCE = "9:nobody"


def _once(world: World, kind: str, times: int = 1) -> bool:
    return world.done.get(kind, 0) < times


def _fence(world: World, scheduler: str) -> str:
    return world.fences.get(scheduler, UNKNOWN_FENCE)


def commits(world: World, engine: str, *, fail: bool = False) -> Iterator[Action]:
    """An engine may commit anything that ever reached it, in any order, dead or alive."""
    for owner, descriptor in world.sent:
        if owner == engine:
            yield do.commit(engine, descriptor, REQUESTS)
            if fail:
                yield do.commit(engine, descriptor, REQUESTS, fail=True)


def next_number(view: View, engine: str) -> int:
    last = view.last_iteration(engine)
    return 1 if last is None else last + 1


def member(view: View, asked: GenerationRequest, *, fresh: bool) -> Entry:
    """What a scheduler that knows the record would send; it need not fit."""
    attempt = int(view.record(asked.id).get("attempt", 0))
    return do.first(asked, view, attempt) if fresh else do.continuing(asked, attempt, len(view.log(asked.id)))


def dispatches(
    world: World, view: View, scheduler: str, engine: str, asked: GenerationRequest
) -> Iterator[Action]:
    entries = [member(view, asked, fresh=True), member(view, asked, fresh=False)]
    if entries[0].attempt > 0:
        entries += [do.first(asked, view, 0), do.continuing(asked, 0, len(view.log(asked.id)))]
    for entry in entries:
        yield do.dispatch(scheduler, _fence(world, scheduler), engine, next_number(view, engine), [entry])


def reassigns(world: World, scheduler: str, asked: GenerationRequest) -> Iterator[Action]:
    """From every place where the sequence ever was, and from the other engine."""
    places = {(e, m.attempt) for e, d in world.sent for m in d.entries if m.id == asked.id}
    places |= {(E2 if e == E1 else E1, attempt) for e, attempt in places}
    for engine, attempt in sorted(places):
        yield do.reassign(scheduler, _fence(world, scheduler), asked.id, engine, attempt, strike=engine == E1)


def engine_lapses(engine: str) -> Action:
    return do.lapse(f"the presence of {engine} lapses", KEYS.engine(engine), KEYS.batches(engine))


def start(*asked: GenerationRequest) -> tuple[Setup, ...]:
    """A leader, two engines and one accepted group."""
    return (
        lambda _w, _v: do.acquire("s1"),
        lambda _w, _v: do.join_engine(E1),
        lambda _w, _v: do.join_engine(E2),
        lambda _w, _v: do.submit("g1", asked),
    )


def run_first(*asked: GenerationRequest, engine: str = E1) -> Setup:
    """The leader sends the sequences to an engine that holds none of them."""
    return lambda world, view: do.dispatch(
        "s1",
        _fence(world, "s1"),
        engine,
        next_number(view, engine),
        [member(view, one, fresh=True) for one in asked],
    )


def death(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1), *commits(world, E2), *reassigns(world, "s1", A)]
    found += [*dispatches(world, view, "s1", E1, A), *dispatches(world, view, "s1", E2, A)]
    if _once(world, "lapse"):
        found.append(engine_lapses(E1))
    if _once(world, "leave_engine"):
        found.append(do.bury_engine("s1", _fence(world, "s1"), E1))
    return found


def takeover(world: World, view: View) -> list[Action]:
    found = []
    for scheduler in ("s1", "s2"):
        fence = _fence(world, scheduler)
        found += [
            do.acquire(scheduler, f"{scheduler}-{world.done.get('lapse', 0)}"),
            do.renew(scheduler, fence),
        ]
        found += [do.resign(scheduler, fence), *dispatches(world, view, scheduler, E1, A)]
        found += [*reassigns(world, scheduler, A)]
    if _once(world, "lapse"):
        found.append(do.lapse("the lead lapses", KEYS.leader))
    return found


def sleeper(world: World, view: View) -> list[Action]:
    """The steps of a scheduler that thinks it leads, beside those of the one that does."""
    found = [do.lapse("the lead lapses", KEYS.leader)] if _once(world, "lapse") else []
    found += [do.acquire("s2"), *commits(world, E1)]
    for scheduler in ("s1", "s2"):
        fence = _fence(world, scheduler)
        found += [do.ask_report(scheduler, fence, E1), do.bury_engine(scheduler, fence, E1)]
        found += [do.end(scheduler, A, State.FAILED, fence=fence), do.trim_inbox(scheduler, fence, view, 1)]
    return found


def cancel(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1, fail=True), *dispatches(world, view, "s1", E1, A)]
    found += [do.end("g1", A, State.CANCELLED), do.end("g2", A, State.CANCELLED, only_if=State.WAITING)]
    found += [*reassigns(world, "s1", A), do.end("g2", B, State.CANCELLED)]
    return found


def stop_string(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1), *dispatches(world, view, "s1", E1, A)]
    found += [do.end("g1", A, State.COMPLETED, n_tokens=n) for n in (0, 1, 2, 5)]
    found += [do.end("g1", A, State.COMPLETED), do.end("g2", A, State.FAILED, n_tokens=0)]
    return [*found, do.end("g2", A, State.CANCELLED)]


def group(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1)]
    for asked in (*PAIR, *TWO_PROMPTS):
        if view.record(asked.id):
            found += [do.end("g1", asked, outcome) for outcome in map(State, FINAL)]
    running = [asked for asked in PAIR if view.record(asked.id).get("state") == "running"]
    entries = [member(view, asked, fresh=False) for asked in running]
    if entries:
        found.append(
            do.dispatch("s1", _fence(world, "s1"), E1, next_number(view, E1), entries, trim_before=1)
        )
        found.append(do.dispatch("s1", _fence(world, "s1"), E1, next_number(view, E1), entries[:1]))
    return found


def two_members(world: World, view: View) -> list[Action]:
    both = [member(view, A, fresh=True), member(view, PAIR[0], fresh=False)]
    mixed = do.dispatch("s1", _fence(world, "s1"), E1, next_number(view, E1), both, trim_before=1)
    found = [mixed, *commits(world, E1), do.end("g1", A, State.CANCELLED)]
    return [*found, do.end("g1", PAIR[0], State.CANCELLED)]


def door(world: World, view: View) -> list[Action]:
    found = []
    for gateway in ("g1", "g2"):
        found += [do.submit(gateway, [A], max_queue=1, idempotency="k", fingerprint="f")]
        found += [do.submit(gateway, [B], max_queue=2, idempotency="k", fingerprint="f")]
        found.append(do.submit(gateway, PAIR, max_queue=2, idempotency="k", fingerprint="other"))
    found.append(do.submit("g2", [B], max_queue=1, idempotency="k", fingerprint="f", replaces="a"))
    found.append(do.submit("g1", TWO_PROMPTS, max_queue=3))
    if view.record("a"):
        found.append(do.end("g1", A, State.CANCELLED))
    return found


def readers(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1), *dispatches(world, view, "s1", E1, A), do.end("g2", A, State.CANCELLED)]
    for gateway in ("g1", "g2"):
        found += [
            do.attach(gateway, "a", 0),
            do.attach(gateway, "a", 1, listen=False),
            do.attach(gateway, "b"),
        ]
        found += [do.detach(gateway, "a"), do.detach(gateway, "b")]
    return found


def back_in_time(world: World, view: View) -> list[Action]:
    found = [*commits(world, E1), *commits(world, E2)]
    # No client was shown more than was committed once; after a loss that may be more than the log.
    shown = range(3 if world.lossy else len(view.log("a")) + 1)
    found += [do.restore(gateway, A, n) for gateway in ("g1", "g2") for n in shown]
    if view.log("a"):
        found.append(do.restore("g1", A, 2, wrong=True))
    found += [*dispatches(world, view, "s1", E1, A), *dispatches(world, view, "s1", E2, A)]
    found.append(do.end("g1", A, State.COMPLETED, n_tokens=1))
    if _once(world, "lose", 2) and view.record("a").get("state") not in FINAL:
        found += [do.lose_record(A), do.lose_tail("a")]
    return found


def after_a_loss(world: World, view: View) -> list[Action]:
    """A restored record counts its attempts anew, so only the engine tells two first attempts apart."""
    found = [*commits(world, E1), *commits(world, E2)]
    return [*found, *dispatches(world, view, "s1", E2, A), *reassigns(world, "s1", A)]


def comings(world: World, view: View) -> list[Action]:
    fence = _fence(world, "s1")
    found = [do.ask_report("s1", fence, E1), do.bury_engine("s1", fence, E1), *commits(world, E1)]
    for engine in (E1, "e1.y"):
        found += [do.join_engine(engine), do.beat_engine(engine), do.drain_engine(engine)]
        found += [do.report_engine(engine), do.leave_engine(engine)]
        found.append(do.dispatch("s1", fence, engine, next_number(view, engine), []))
    if _once(world, "lapse", 2):
        found += [do.lapse("the presence of e1.x lapses", KEYS.engine(E1))]
        found += [do.lapse("the stream of e1.x lapses", KEYS.batches(E1))]
    found += [*commits(world, "e1.y"), do.acquire("s1"), do.dispatch("s1", fence, E1, 1, [])]
    return found


def gateways(world: World, view: View) -> list[Action]:
    found = [make(g) for g in ("g1", "g2") for make in (do.join_gateway, do.beat_gateway, do.leave_gateway)]
    if _once(world, "lapse"):
        found.append(do.lapse("the presence of g1 lapses", KEYS.gateway("g1")))
    return found


def knobs(world: World, view: View) -> list[Action]:
    changes = [RuntimeSettings(max_batch_size=1), RuntimeSettings(queue_timeout=2.5)]
    changes += [RuntimeSettings(max_batch_size=None, queue_timeout=0.0)]
    return [do.change_settings(gateway, change) for gateway in ("g1", "g2") for change in changes]


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("an engine dies", (*start(A), run_first(A)), death, 4),
        Scenario("the lead changes hands", (*start(A), run_first(A)), takeover, 3),
        Scenario("a sleeper wakes", (*start(A), run_first(A)), sleeper, 3),
        Scenario("cancel against dispatch and commit", start(A), cancel, 4),
        Scenario("a stop string ends a sequence", (*start(A), run_first(A)), stop_string, 3),
        Scenario("two choices", (*start(*PAIR), run_first(*PAIR)), group, 3),
        Scenario("two prompts", start(*TWO_PROMPTS), group, 4),
        Scenario("a mixed batch", (*start(*PAIR), run_first(PAIR[0]), lambda _w, _v: do.submit("g2", [A])),
                 two_members, 3),
        Scenario("the door", (), door, 3, lost=2),
        Scenario("two readers", start(A), readers, 3),
        Scenario("the server goes back in time", (*start(A), run_first(A)), back_in_time, 3),
        Scenario("an engine sleeps through a loss",
                 (*start(A), run_first(A), lambda _w, _v: do.lose_record(A),
                  lambda _w, _v: do.restore("g1", A, 0)),
                 after_a_loss, 2),
        Scenario("engines come and go", start(A)[:2], comings, 3),
        Scenario("gateways come and go", (), gateways, 4),
        Scenario("settings change", (), knobs, 3),
    )
}  # fmt: skip
