"""Score a given text: what the model would have chosen at each position, and how far from another pass it is.

A pass may keep its distributions in a file, for a pass of another precision to be compared with them: the divergence
is exact, over the whole vocabulary, and no logits leave the process. Knows nothing of why a text is scored.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from engine.embedded.blocks import BlockPool
from engine.embedded.runner import ModelRunner
from engine.embedded.scheduler import Batch, Slice
from engine.embedded.sequence import Sequence
from engine.errors import NumericsError, ReferenceUnreadable, RequestRefused
from engine.serving import TokenScores


def score(
    runner: ModelRunner,
    pool: BlockPool[Sequence],
    sequence: Sequence,
    *,
    chunk: int,
    num_last: int | None = None,
    keep: str | None = None,
    against: str | None = None,
) -> TokenScores:
    """Run a sequence's tokens through the model once, `chunk` at a time; see `ServingEngine.score`.

    Afterwards its blocks are free again, and hold nothing that is not finite.
    """
    num_tokens = len(sequence.token_ids)
    first = 0 if num_last is None else max(0, num_tokens - 1 - num_last)
    if num_tokens - 1 - first < 1:
        raise RequestRefused(f"{num_tokens} tokens to score; give at least 2, of which at least 1 is scored")
    try:
        pool.grow(sequence, num_tokens)
        starts = range(0, num_tokens, chunk)
        rows = [_logprobs(runner, sequence, start, min(chunk, num_tokens - start), first) for start in starts]
    except NumericsError:
        runner.wipe(sequence.block_table)
        raise
    finally:
        pool.release(sequence)
    logprobs = torch.cat(rows)
    if keep is not None:
        _keep(logprobs, Path(keep))
    following = torch.tensor(sequence.token_ids[first + 1 :], device=logprobs.device)
    return TokenScores(
        top_token_ids=tuple(logprobs.argmax(dim=-1).tolist()),
        logprobs=tuple(logprobs.gather(1, following[:, None])[:, 0].tolist()),
        divergences=None if against is None else tuple(divergences(_kept(Path(against), logprobs), logprobs).tolist()),
    )


def divergences(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the Kullback-Leibler divergence of each row of `reference` from that of `other`, in nats.

    Both are log-probabilities (rows, vocabulary). D(P||Q) = sum of p (log p - log q), summed in float64; what rounding
    makes of it below 0 is 0. A token of probability 0 in `reference` adds nothing.
    """
    log_p, log_q = reference.double(), other.double()
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(dim=-1).clamp(min=0.0)


def _logprobs(runner: ModelRunner, sequence: Sequence, start: int, count: int, first: int) -> torch.Tensor:
    """Compute one chunk; return the fp32 log-probabilities of those of its positions that are scored."""
    logits = runner.run(Batch((), (Slice(sequence, start, count, False),)), all_rows=True)
    if not math.isfinite(float(logits.sum())):
        raise NumericsError("logits are not finite")
    last = min(count, len(sequence.token_ids) - 1 - start)  # nothing follows the last token
    return torch.log_softmax(logits[max(0, first - start) : max(0, last)].float(), dim=-1)


def _keep(logprobs: torch.Tensor, path: Path) -> None:
    """Write log-probabilities as a .npy file of float32: 16 bit would be as coarse as what is to be compared."""
    try:
        np.save(path, logprobs.cpu().numpy(), allow_pickle=False)
    except OSError as error:
        raise ReferenceUnreadable(
            f"cannot keep {logprobs.numel() * 4 / 2**20:.0f} MiB of log-probabilities in {path}: {error.strerror}; "
            "free space there or let TMPDIR name another folder"
        ) from error


def _kept(path: Path, like: torch.Tensor) -> torch.Tensor:
    """Read what `_keep` wrote; it must be of the same positions and vocabulary."""
    try:
        kept = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ReferenceUnreadable(f"cannot read kept log-probabilities in {path}: {error}") from error
    if kept.shape != tuple(like.shape):
        raise ReferenceUnreadable(f"{path} has log-probabilities of {kept.shape}, needed are {tuple(like.shape)}")
    return torch.from_numpy(kept).to(like.device)
