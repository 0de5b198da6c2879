"""Log probabilities of a prompt's own tokens: what `echo` with `logprobs` asks for.

The rows of a prompt before its last token go through the model in pieces, so that the logits of a
long prompt [L, V] are never there at once; the last token stays for the iteration itself. The
pieces depend on the prompt alone, so the scores do too.
"""

from collections.abc import Sequence

import torch

from services.engine.inputs import MemberInput, flatten
from services.engine.kv_manager import KVManager
from services.engine.model.load import LoadedModel
from services.engine.sampling import log_softmax, top_logprobs
from shared.protocol.token import TokenEntry

PIECE = 256
"""Rows whose logits are held at once."""


def score_prompt(
    model: LoadedModel, kv: KVManager, sequence_id: str, tokens: Sequence[int], n_top: int
) -> tuple[TokenEntry, ...]:
    """Run all tokens but the last of a sequence that was just admitted; write their K/V.

    Returns: one entry per token, in their order; the first has nothing before it and no score.

    Raises:
        ArithmeticError: the model's output is not finite.
    """
    entries = [TokenEntry(token=tokens[0])]
    for start in range(0, len(tokens) - 1, PIECE):
        piece = tuple(tokens[start : min(start + PIECE, len(tokens) - 1)])
        member = MemberInput(sequence_id, piece, kv.get(sequence_id))
        logits = model.forward(flatten([member], all_rows=True))  # [L_i, V]
        if not torch.isfinite(logits).all():
            raise ArithmeticError("the model's output for this prompt is not finite")
        kv.extend(sequence_id, len(piece))
        for row, token in zip(logits.numpy(), tokens[start + 1 :], strict=False):
            scores = log_softmax(row)
            top = top_logprobs(scores, n_top)
            entries.append(TokenEntry(token=token, logprob=float(scores[token]), top=top))
    return tuple(entries)
