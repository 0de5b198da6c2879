"""Breadth-first search over interleavings: the first violation found is a shortest one."""

from collections import deque
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

from tests.explorer.actions import lost_replies
from tests.explorer.answers import rules
from tests.explorer.invariants import Step, state_laws, step_laws
from tests.explorer.model import Action, View, World
from tests.explorer.server import Image, Lab

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
    repeats: bool = True
    """Whether replies get lost."""


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
        return "\n".join(["the shortest bad interleaving:", *steps, *(f"  broken: {p}" for p in self.problems)])


@dataclass(frozen=True)
class Node:
    """One state, and how it was reached."""

    image: Image
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
        node = Node((), View(b"{}"), World(), ())
        for make in self._scenario.setup:
            found = self._take(node, make(node.world, node.view))
            if isinstance(found, Outcome):
                return found
            node = self._keep(found)
        return self._widen(node)

    def _widen(self, root: Node) -> Outcome:
        seen, waiting = {self._mark(root)}, deque([root])
        longest = len(root.trail) + self._scenario.depth
        while waiting:
            node = waiting.popleft()
            for action in self._enabled(node):
                found = self._take(node, action)
                if isinstance(found, Outcome):
                    return found
                if (mark := self._mark(found)) in seen:
                    continue
                seen.add(mark)
                if len(found.trail) < longest:
                    waiting.append(self._keep(found))
        return Outcome(len(seen), self.steps)

    def _enabled(self, node: Node) -> Seq[Action]:
        lost = lost_replies(node.world) if self._scenario.repeats else []
        return [*self._scenario.choices(node.world, node.view), *lost]

    def _take(self, node: Node, action: Action) -> Node | Outcome:
        """One step; its image is missing until `_keep`, which must follow at once if at all."""
        self.steps += 1
        answer, view, heard = self._lab.perform(node.image, action)
        world = node.world.after(action, answer)
        trail = (*node.trail, f"{action.label} -> {answer}" if action.call else action.label)
        step = Step(node.view, action, answer, view, heard, world)
        problems = (*step_laws(step), *rules(step), *state_laws(view, world))
        if problems:
            return Outcome(0, self.steps, trail, problems)
        return Node((), view, world, trail)

    def _keep(self, node: Node) -> Node:
        return Node(self._lab.image(), node.view, node.world, node.trail)

    @staticmethod
    def _mark(node: Node) -> int:
        return hash((node.view.fingerprint, node.world.fingerprint))
