"""What one pass makes of a text against another: exact divergences, through a file, in this process and in a child."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.embedded.scoring import divergences
from engine.errors import ReferenceUnreadable, RequestRefused
from tests.engine.conftest import OpenTiny
from tests.engine.logits import all_logits
from tests.tiny_model import write_tiny_model

TEXT = tuple(b"a text that two models are asked about, longer than one chunk")


def test_divergence_is_the_mean_surplus_surprise() -> None:
    """Of (1/2, 1/2) from (1/4, 3/4) it is ln 2 - ln 3 / 2, of one from itself nothing, of a sure one ln 4."""
    halves, quarters = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert divergences(halves, quarters).tolist() == pytest.approx([np.log(2.0) - np.log(3.0) / 2], abs=1e-7)
    assert divergences(halves, halves).tolist() == [0.0]
    assert divergences(torch.tensor([[1.0, 0.0]]).log(), quarters).tolist() == pytest.approx([np.log(4.0)], abs=1e-7)


def test_divergence_is_over_the_whole_vocabulary(open_tiny: OpenTiny, tmp_path: Path) -> None:
    """A pass that another model kept gives, at each position, what torch's own kl_div makes of both models' logits."""
    one, other = open_tiny(prefill_chunk=16), open_tiny(folder=write_tiny_model(tmp_path / "other", seed=1))
    kept = str(tmp_path / "kept.npy")
    one.score(TEXT, keep=kept)

    found = other.score(TEXT, against=kept).divergences

    log_p, log_q = (torch.log_softmax(all_logits(engine, TEXT)[:-1].double(), dim=-1) for engine in (one, other))
    expected = torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=-1)
    assert found == pytest.approx(expected.tolist(), rel=1e-3)
    assert min(found or (0.0,)) > 0.01


def test_a_pass_does_not_differ_from_itself(open_tiny: OpenTiny, tmp_path: Path) -> None:
    """The same engine's second pass over a text diverges from its first by nothing at all."""
    opened, kept = open_tiny(), str(tmp_path / "kept.npy")
    first = opened.score(TEXT, keep=kept)

    again = opened.score(TEXT, against=kept)

    assert first.divergences is None
    assert again.divergences == (0.0,) * (len(TEXT) - 1)
    assert (first.logprobs, first.top_token_ids) == (again.logprobs, again.top_token_ids)


@pytest.mark.parametrize("chunk", [7, 64])
def test_only_the_last_tokens_are_scored(open_tiny: OpenTiny, tmp_path: Path, chunk: int) -> None:
    """Of a text's last ten tokens the scores are those of a whole pass, wherever chunks begin, and no more is kept."""
    opened, kept = open_tiny(prefill_chunk=chunk), tmp_path / "kept.npy"
    whole = opened.score(TEXT)

    last = opened.score(TEXT, num_last=10, keep=str(kept))

    assert last.logprobs == pytest.approx(whole.logprobs[-10:], abs=1e-5)
    assert last.top_token_ids == whole.top_token_ids[-10:]
    assert np.load(kept).shape == (10, 256)
    assert opened.score(TEXT[:4], num_last=10).logprobs == pytest.approx(whole.logprobs[:3], abs=1e-5)


def test_a_text_of_one_token_is_refused(open_tiny: OpenTiny) -> None:
    """With nothing before or after it a token has no score."""
    with pytest.raises(RequestRefused, match="1 tokens to score; give at least 2"):
        open_tiny().score((7,))


def test_what_was_kept_of_another_text_is_refused(open_tiny: OpenTiny, tmp_path: Path) -> None:
    """Positions that do not fit, a file that is none, and a folder that is not there are named errors."""
    opened, kept = open_tiny(), tmp_path / "kept.npy"
    opened.score(TEXT, keep=str(kept))
    with pytest.raises(ReferenceUnreadable, match=r"has log-probabilities of \(60, 256\), needed are \(4, 256\)"):
        opened.score(TEXT[:5], against=str(kept))
    kept.write_bytes(b"not numpy's")
    with pytest.raises(ReferenceUnreadable, match="cannot read kept log-probabilities"):
        opened.score(TEXT, against=str(kept))
    with pytest.raises(ReferenceUnreadable, match="No such file or directory; free space there"):
        opened.score(TEXT, keep=str(tmp_path / "gone" / "kept.npy"))
    assert opened.pool.num_used == 0
