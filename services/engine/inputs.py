"""From members to the flat batch: token ids [T], positions [T], and whose rows are whose.

Knows no descriptor fields beyond what a member is; makes tensors and no decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.engine.kv_manager import KVCache


@dataclass(frozen=True, slots=True)
class MemberInput:
    """One sequence's part of an iteration: its new tokens and where they go."""

    id: str
    tokens: tuple[int, ...]
    cache: KVCache


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """All members' tokens in one row, in the members' order."""

    token_ids: torch.Tensor
    """[1, T]"""
    positions: torch.Tensor
    """[1, T]: each token's place in its own sequence."""
    last_rows: torch.Tensor
    """[B]: the row of each member's last token; only these rows reach the LM head."""
    lengths: tuple[int, ...]
    """L_i of each member."""
    caches: tuple[KVCache, ...]


def flatten(members: Sequence[MemberInput], *, all_rows: bool = False) -> FlatBatch:
    """Lay the members' tokens behind each other; with `all_rows` every row reaches the LM head.

    Raises:
        ValueError: a member without tokens, or without room for them.
    """
    tokens: list[int] = []
    positions: list[int] = []
    last_rows: list[int] = []
    for member in members:
        start, end = member.cache.length, member.cache.length + len(member.tokens)
        if not member.tokens or end > member.cache.reserved_slots:
            raise ValueError(
                f"{member.id} brings {len(member.tokens)} tokens to {start} of "
                f"{member.cache.reserved_slots} K/V slots"
            )
        tokens.extend(member.tokens)
        positions.extend(range(start, end))
        last_rows.append(len(tokens) - 1)
    return FlatBatch(
        token_ids=torch.tensor([tokens]),  # [1, T]
        positions=torch.tensor([positions]),  # [1, T]
        last_rows=torch.tensor(range(len(tokens)) if all_rows else last_rows),  # [B], or [T]
        lengths=tuple(len(member.tokens) for member in members),
        caches=tuple(member.cache for member in members),
    )
