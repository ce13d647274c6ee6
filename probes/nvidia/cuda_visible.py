"""Which GPUs a CUDA program here would see, by UUID.

Follows what the CUDA programming guide says of CUDA_VISIBLE_DEVICES and how torch reads it
(torch.cuda._parse_visible_devices): the first entry decides whether the list holds numbers, GPU UUIDs or MIG
UUIDs; an invalid entry hides itself and all after it; a repeated one hides everything. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probes.errors import ProbeError
from probes.nvidia.nvml import Card

GPU_PREFIX = "GPU-"
MIG_PREFIX = "MIG-"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCards:
    """The GPUs in CUDA's order."""

    cards: tuple[Card, ...]
    #: Why there are fewer than the machine has; empty when nothing is hidden.
    reason: str = ""
    #: Whether a card's place in the list is its CUDA ordinal for certain.
    has_certain_order: bool = True
    #: UUIDs of cards of which only a MIG slice was named.
    sliced: frozenset[str] = frozenset()


def visible_cards(
    value: str | None,
    cards: Sequence[Card],
    *,
    is_pci_order: bool,
    mig_parent: Callable[[str], str],
    is_complete: bool = True,
) -> VisibleCards:
    """Return the cards that CUDA_VISIBLE_DEVICES = `value` leaves; None means that it is not set.

    `cards` are in order of PCI id. Unless CUDA_DEVICE_ORDER=PCI_BUS_ID (`is_pci_order`), CUDA puts the fastest
    first, which changes nothing between cards of one model but cannot be predicted between different ones: then
    numbers are refused rather than guessed. So they are where a GPU does not answer (not `is_complete`): whether CUDA
    counts it cannot be known.
    """
    has_certain_order = is_complete and (is_pci_order or len({card.name for card in cards}) <= 1)
    if value is None:
        return VisibleCards(cards=tuple(cards), has_certain_order=has_certain_order)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith(GPU_PREFIX):
        return _by_uuid(entries, cards)
    if entries[0].startswith(MIG_PREFIX):
        return _by_slice(entries, cards, mig_parent)
    if not has_certain_order and entries[0]:
        why = (
            "numbers are ambiguous between different GPU models; use UUIDs or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            if is_complete
            else "numbers are ambiguous while a GPU does not answer; use UUIDs"
        )
        return VisibleCards(cards=(), reason=f"CUDA_VISIBLE_DEVICES={value}: {why}", has_certain_order=False)
    return _by_number(entries, cards)


def card_with_prefix(uuid_prefix: str, cards: Sequence[Card]) -> Card | None:
    """Return the only card whose UUID begins so, in any case; None when there are none or several."""
    matches = [card for card in cards if card.uuid.lower().startswith(uuid_prefix.lower())]
    return matches[0] if len(matches) == 1 else None


def _by_number(entries: Sequence[str], cards: Sequence[Card]) -> VisibleCards:
    def find(entry: str) -> Card | None:
        # CUDA reads numbers like strtoul: "1gpu" is 1.
        digits = re.match(r"\+?\d+", entry)
        number = int(digits.group()) if digits else -1
        return cards[number] if 0 <= number < len(cards) else None

    return _until_invalid(entries, find)


def _by_uuid(entries: Sequence[str], cards: Sequence[Card]) -> VisibleCards:
    return _until_invalid(
        entries, lambda entry: card_with_prefix(entry, cards) if entry.startswith(GPU_PREFIX) else None
    )


def _by_slice(entries: Sequence[str], cards: Sequence[Card], mig_parent: Callable[[str], str]) -> VisibleCards:
    """Return the cards behind MIG slices; two slices of one card are one card, whose power is measured once."""
    found: dict[str, Card] = {}
    for entry in entries:
        card = _card_of_slice(entry, cards, mig_parent)
        if card is None:
            return VisibleCards(cards=tuple(found.values()), reason=_hidden(entry), sliced=frozenset(found))
        found[card.uuid] = card
    return VisibleCards(cards=tuple(found.values()), sliced=frozenset(found))


def _card_of_slice(entry: str, cards: Sequence[Card], mig_parent: Callable[[str], str]) -> Card | None:
    if not entry.startswith(MIG_PREFIX):
        return None
    # Drivers before R470 name a slice MIG-GPU-<uuid of the card>/<GPU instance>/<compute instance>.
    if entry.startswith(MIG_PREFIX + GPU_PREFIX):
        return card_with_prefix(entry.removeprefix(MIG_PREFIX).split("/")[0], cards)
    try:
        return card_with_prefix(mig_parent(entry), cards)
    except ProbeError:
        return None


def _until_invalid(entries: Sequence[str], find: Callable[[str], Card | None]) -> VisibleCards:
    found: list[Card] = []
    for entry in entries:
        card = find(entry)
        if card is None:
            return VisibleCards(cards=tuple(found), reason=_hidden(entry))
        if card in found:
            return VisibleCards(
                cards=(), reason=f"CUDA_VISIBLE_DEVICES names a GPU twice ({entry}): CUDA then shows none"
            )
        found.append(card)
    return VisibleCards(cards=tuple(found))


def _hidden(entry: str) -> str:
    return f"CUDA_VISIBLE_DEVICES: {entry!r} is no GPU here; CUDA hides it and all after it"
