"""The attention K/V manager: who has keys and values here, and how much room they hold.

Each sequence gets exactly its reservation, in one piece, for its whole life. Whether a sequence
has K/V here is how its phase is known. Knows nothing of tokens, sampling or Redis.
"""

from dataclasses import dataclass

import torch

from shared.protocol.result import Phase


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one token's keys and values."""

    n_layers: int
    n_kv_heads: int
    head_dim: int

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one token's float32 keys and values over all layers, in bytes."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * 4


class KVCache:
    """One sequence's keys and values; `length` counts the valid rows."""

    def __init__(self, layout: KVLayout, reserved_slots: int) -> None:
        shape = (layout.n_layers, 1, layout.n_kv_heads, reserved_slots, layout.head_dim)
        self.reserved_slots = reserved_slots
        self.length = 0
        self._keys = torch.empty(shape)  # [layers, 1, g, slots, d]
        self._values = torch.empty(shape)  # [layers, 1, g, slots, d]
        # One view per layer, made once: indexing costs as much as a small attention call.
        self._layers = list(zip(self._keys.unbind(0), self._values.unbind(0), strict=True))

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put rows [1, g, L_i, d] behind the valid ones; returns all N_i rows [1, g, N_i, d].

        They become valid with `KVManager.extend` alone, so an iteration that fails half-way
        leaves the cache as it was.
        """
        all_keys, all_values = self._layers[layer]
        end = self.length + keys.shape[2]
        all_keys[:, :, self.length : end].copy_(keys)
        all_values[:, :, self.length : end].copy_(values)
        return all_keys[:, :, :end], all_values[:, :, :end]


class KVManager:
    """All K/V of one engine, within `n_slots`."""

    def __init__(self, layout: KVLayout, n_slots: int) -> None:
        self.layout = layout
        self.n_slots = n_slots
        self._held: dict[str, KVCache] = {}

    def __contains__(self, sequence_id: object) -> bool:
        return sequence_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def n_reserved(self) -> int:
        """Slots promised to the held sequences."""
        return sum(cache.reserved_slots for cache in self._held.values())

    @property
    def n_used(self) -> int:
        """Slots whose keys and values are valid."""
        return sum(cache.length for cache in self._held.values())

    def phase(self, sequence_id: str) -> Phase:
        """What the next iteration of a sequence is: it decodes if it has valid K/V here."""
        cache = self._held.get(sequence_id)
        return Phase.DECODE if cache is not None and cache.length else Phase.PREFILL

    def admit(self, sequence_id: str, reserved_slots: int) -> KVCache:
        """Reserve room for a sequence's whole life.

        Raises:
            ValueError: it is held already, or the reservation is not positive.
            MemoryError: the engine's slots do not suffice.
        """
        if sequence_id in self._held:
            raise ValueError(f"{sequence_id} already has K/V here")
        if reserved_slots < 1:
            raise ValueError(f"{sequence_id} reserves {reserved_slots} K/V slots")
        free = self.n_slots - self.n_reserved
        if reserved_slots > free:
            raise MemoryError(f"{reserved_slots} K/V slots are asked for and {free} are free")
        cache = KVCache(self.layout, reserved_slots)
        self._held[sequence_id] = cache
        return cache

    def get(self, sequence_id: str) -> KVCache:
        """The cache of a held sequence. Raises KeyError for another."""
        return self._held[sequence_id]

    def extend(self, sequence_id: str, n_tokens: int) -> None:
        """Make the rows valid that an iteration wrote.

        Raises:
            ValueError: beyond the reservation.
        """
        cache = self._held[sequence_id]
        if cache.length + n_tokens > cache.reserved_slots:
            raise ValueError(f"{sequence_id} outgrows its {cache.reserved_slots} K/V slots")
        cache.length += n_tokens

    def release(self, sequence_id: str) -> None:
        """Drop a sequence's K/V; an unknown id is no fault, releases may come twice."""
        self._held.pop(sequence_id, None)

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
