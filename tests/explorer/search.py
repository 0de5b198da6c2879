"""Breadth-first search over interleavings: the first violation found is a shortest one."""

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tests.explorer.actions import lost_replies
from tests.explorer.answers import rules
from tests.explorer.invariants import Step, fragments, state_laws, step_laws
from tests.explorer.model import Action, View, World
from tests.explorer.server import Lab

Choice = Callable[[World, View], list[Action]]
Setup = Callable[[World, View], Action]


@dataclass(frozen=True)
class Scenario:
    """Some actors, what they may do, and how far their steps are interleaved."""

    name: str
    setup: tuple[Setup, ...]
    """Steps that always come first, in this order; they are checked too."""
    choices: Choice
    depth: int
    lost: int = 1
    """How many replies are lost in one interleaving, at most."""


@dataclass(frozen=True)
class Outcome:
    """What an exploration came to."""

    states: int
    steps: int
    trail: tuple[str, ...] = ()
    """The shortest bad interleaving; empty when there is none."""
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.problems:
            return f"{self.states} states, {self.steps} steps, no violation"
        steps = [f"  {number}. {label}" for number, label in enumerate(self.trail, 1)]
        return "\n".join(
            ["the shortest bad interleaving:", *steps, *(f"  broken: {p}" for p in self.problems)]
        )


@dataclass(frozen=True)
class Node:
    """One state, and how it was reached."""

    image: int
    view: View
    world: World
    trail: tuple[str, ...]


class Search:
    """One exploration of one scenario."""

    def __init__(self, lab: Lab, scenario: Scenario) -> None:
        self._lab = lab
        self._scenario = scenario
        self.steps = 0

    def run(self) -> Outcome:
        """Explore to the scenario's depth, or to the first violation."""
        self._lab.forget()
        node = Node(0, View(b"{}"), World(), ())
        for make in self._scenario.setup:
            for found in self._take(node, [make(node.world, node.view)], keep=True):
                if isinstance(found, Outcome):
                    return found
                node = found
        return self._widen(node)

    def _widen(self, root: Node) -> Outcome:
        seen, waiting = {self._mark(root)}, deque([root])
        longest = len(root.trail) + self._scenario.depth
        while waiting:
            node = waiting.popleft()
            deeper = len(node.trail) + 1 < longest
            for found in self._take(node, self._enabled(node), keep=deeper):
                if isinstance(found, Outcome):
                    return found
                if (mark := self._mark(found)) in seen:
                    continue
                seen.add(mark)
                if deeper:
                    waiting.append(found)
        return Outcome(len(seen), self.steps)

    def _enabled(self, node: Node) -> Seq[Action]:
        lost = lost_replies(node.world) if node.world.lost < self._scenario.lost else []
        return [*self._scenario.choices(node.world, node.view), *lost]

    def _take(self, node: Node, actions: Seq[Action], *, keep: bool) -> Iterator[Node | Outcome]:
        """Every one of these steps, each from this node."""
        for action, seen in zip(actions, self._lab.perform(node.image, actions, keep=keep), strict=True):
            self.steps += 1
            world = node.world.after(action, seen.answer)
            trail = (*node.trail, f"{action.label} -> {seen.answer}" if action.call else action.label)
            step = Step(node.view, action, seen.answer, seen.after, seen.heard, world)
            problems = fragments(seen.after) or (
                *step_laws(step),
                *rules(step),
                *state_laws(seen.after, world),
            )
            yield (
                Outcome(0, self.steps, trail, problems)
                if problems
                else Node(seen.image, seen.after, world, trail)
            )

    @staticmethod
    def _mark(node: Node) -> int:
        return hash((node.view.fingerprint, node.world.fingerprint))
