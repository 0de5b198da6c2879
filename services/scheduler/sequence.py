"""One answer's progress, as the scheduler sees it. Phase and room are derived, never stored.

Knows no engine but by id, and no tokens but the last.
"""

from dataclasses import dataclass, field

from shared.protocol.request import GenerationRequest
from shared.protocol.result import Phase

Order = tuple[int, int, str]
"""What candidates are ordered by: priority (lower first), arrival, then the id to make it total."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence that has not ended. ORCA says request."""

    request: GenerationRequest
    arrival: int
    since: float
    """When it was accepted: seconds of the Redis clock."""
    attempt: int = 0
    n_output: int = 0
    """Tokens committed so far."""
    last_token: int = 0
    engine: str = ""
    """The engine that it runs on; empty while it waits."""
    has_kv: bool = False
    """Its engine holds K/V for all known tokens but the last."""
    in_flight: bool = False
    """Inside a batch that was dispatched and has not returned: ORCA's RUNNING."""
    order: Order = field(init=False)
    """Its place among the candidates; never changes."""

    def __post_init__(self) -> None:
        self.order = self.request.priority, self.arrival, self.request.id

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def reserved_slots(self) -> int:
        """K/V slots of its whole life: ORCA's max_tokens."""
        return self.request.reserved_slots

    @property
    def phase(self) -> Phase:
        return Phase.DECODE if self.has_kv else Phase.PREFILL

    @property
    def n_kv(self) -> int:
        """K/V rows its engine holds between iterations."""
        return self.request.n_prompt + self.n_output - 1 if self.has_kv else 0
