"""What the heartbeat does about a main loop that hangs after its engine was lost."""

import redis

from services.engine.heartbeat import HANG_SECONDS, Heartbeat
from shared.keys import Keys


class Process:
    """A process as the heartbeat sees it."""

    def __init__(self) -> None:
        self.layers, self.given_up = 0, 0
        client = redis.Redis()  # never asked: these tests do not beat
        self.heart = Heartbeat(client, Keys("m"), lambda: self.layers, give_up=self.give_up)

    def give_up(self) -> None:
        self.given_up += 1


def test_a_lost_engine_whose_main_loop_stands_still_ends_its_process() -> None:
    process = Process()
    process.heart.lost.set()
    process.heart.watch(0.0)
    process.heart.watch(HANG_SECONDS - 0.1)
    before = process.given_up
    process.heart.watch(HANG_SECONDS)
    assert (before, process.given_up) == (0, 1)


def test_one_that_still_computes_is_left_to_join_anew() -> None:
    process = Process()
    process.heart.lost.set()
    for beat in range(5):
        process.layers += 1
        process.heart.watch(beat * HANG_SECONDS)
    assert not process.given_up


def test_one_that_has_joined_anew_is_watched_from_the_start() -> None:
    process = Process()
    process.heart.lost.set()
    process.heart.watch(0.0)
    process.heart.beat_for("engine-0.new", "server")
    process.heart.watch(HANG_SECONDS)
    process.heart.lost.set()
    process.heart.watch(2 * HANG_SECONDS)
    assert not process.given_up
