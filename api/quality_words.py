"""What a precision costs in quality, in words, and what that was told from. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from api import schemas


def quality_words(quality: schemas.QualityOut) -> str:
    """Return what a precision costs in a few words: the perplexity ratio, and divergence and tasks where there are any.

    Of several tasks it is the one with the least share of the reference's score.
    """
    words = [f"ppl {quality.perplexity_ratio:.3f}x"]
    if quality.kl is not None:
        words.append(f"KL {quality.kl:.2g}")
    if quality.tasks:
        worst = min(quality.tasks, key=_share)
        words.append(f"{worst.task} {_share(worst):.3f}x")
    return ", ".join(words)


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
    notes += [note for name, quality in sorted(found.items()) for note in _task_notes(name, quality)]
    reused = {name: one.measured_at for name, one in sorted(found.items()) if one.is_reused and one.measured_at}
    if reused:
        told = ", ".join(f"{name} on {when:%Y-%m-%d}" for name, when in reused.items())
        notes.append(f"Quality was measured by earlier jobs: {told}.")
    return notes


def _share(one: schemas.TaskScoreOut) -> float:
    return one.score / one.reference_score


def _task_notes(precision: str, quality: schemas.QualityOut) -> list[str]:
    """Return what a precision scores on each task; of the reference that is told beside the others."""
    if precision == quality.reference and quality.kv_precision == "auto":
        return []
    return [
        f"Task {one.task}: {precision} has {one.metric} {one.score:.4g}, {_share(one):.4f} of the "
        f"{one.reference_score:.4g} of {quality.reference}, over {one.num_documents} documents{_left_out(one)}."
        for one in quality.tasks
    ]


def _left_out(one: schemas.TaskScoreOut) -> str:
    return f" ({one.num_too_long} more do not fit into the context)" if one.num_too_long else ""
