"""Finds stop strings in text that arrives in pieces. Pure; knows no tokens.

One automaton per stop string (Knuth, Morris and Pratt), so that each character costs the same
however long the strings are, and what must be held back is known exactly: the longest end of
the text that may still become a stop string.
"""

from collections.abc import Sequence


class StopMatcher:
    """The earliest completed stop string, whatever the borders of the pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._links = tuple(map(_links, self._stops))
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> int | None:
        """Read on; where a stop string is complete, the position in `text` at which it begins.

        The position is negative when it began in an earlier piece. Of two strings complete at
        the same character, the one that began first counts. Nothing may be fed after a match.
        """
        if not self._stops:
            return None
        for at, char in enumerate(text):
            longest = 0
            for i, stop in enumerate(self._stops):
                state = self._step(i, stop, char)
                if state == len(stop):
                    longest = max(longest, state)
            if longest:
                return at + 1 - longest
        return None

    def _step(self, i: int, stop: str, char: str) -> int:
        state = self._matched[i]
        while state and stop[state] != char:
            state = self._links[i][state - 1]
        state += stop[state] == char
        self._matched[i] = state
        return state


def _links(stop: str) -> list[int]:
    """For each prefix, the length of its longest end that is a beginning of the string too."""
    links, state = [0] * len(stop), 0
    for at in range(1, len(stop)):
        while state and stop[at] != stop[state]:
            state = links[state - 1]
        state += stop[at] == stop[state]
        links[at] = state
    return links
