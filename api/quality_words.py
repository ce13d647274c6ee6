"""What a precision costs in quality, in words, and what that was told from. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from api import schemas


def quality_words(quality: schemas.QualityOut) -> str:
    """Return what a precision costs in a few words: the perplexity ratio, and the divergence where it is known."""
    ratio = f"ppl {quality.perplexity_ratio:.3f}x"
    return ratio if quality.kl is None else f"{ratio}, KL {quality.kl:.2g}"


def quality_notes(points: Sequence[schemas.PointOut]) -> list[str]:
    """Return what the points' quality was told from, and which of it earlier jobs measured."""
    found = {
        str(point.measurement.engine.get("precision")): quality
        for point in points
        if (quality := point.measurement.quality) is not None and quality.num_prompts
    }
    if not found:
        return []
    notes = []
    for reference in sorted({quality.reference for quality in found.values()}):
        one = next(quality for quality in found.values() if quality.reference == reference)
        notes.append(
            f"Quality: against {reference}, over {one.num_positions} positions at the ends of {one.num_prompts} of the "
            f"job's prompts with {reference}'s completions ({one.num_tokens} tokens); another task may fare otherwise."
        )
    reused = {name: one.measured_at for name, one in sorted(found.items()) if one.is_reused and one.measured_at}
    if reused:
        told = ", ".join(f"{name} on {when:%Y-%m-%d}" for name, when in reused.items())
        notes.append(f"Quality was measured by earlier jobs: {told}.")
    return notes
