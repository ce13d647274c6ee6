"""CUDA_VISIBLE_DEVICES to UUIDs."""

from __future__ import annotations

import pytest

from probes.errors import UnknownDevice
from probes.nvidia.cuda_visible import VisibleCards, card_with_prefix, visible_cards
from probes.nvidia.nvml import Card

A = Card(uuid="GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", name="H100", pci_id="0000:18:00.0")
B = Card(uuid="GPU-89aa0000-1111-2222-3333-444455556666", name="H100", pci_id="0000:3a:00.0")
C = Card(uuid="GPU-c0ffee00-1111-2222-3333-444455556666", name="H100", pci_id="0000:5d:00.0")
OTHER = Card(uuid="GPU-00000000-1111-2222-3333-444455556666", name="RTX 4090", pci_id="0000:af:00.0")

SLICE_OF_B = "MIG-11111111-2222-3333-4444-555555555555"
OTHER_SLICE_OF_B = "MIG-11111111-2222-3333-4444-666666666666"


def mig_parent(uuid: str) -> str:
    if uuid in (SLICE_OF_B, OTHER_SLICE_OF_B):
        return B.uuid
    raise UnknownDevice(uuid)


def resolve(value: str | None, cards: tuple[Card, ...] = (A, B, C), *, is_pci_order: bool = True) -> VisibleCards:
    return visible_cards(value, cards, is_pci_order=is_pci_order, mig_parent=mig_parent)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (A, B, C)),
        ("0", (A,)),
        ("1,0", (B, A)),
        (" 2 , 0 ", (C, A)),
        ("1gpu2,2ampere", (B, C)),
        (A.uuid, (A,)),
        (f"{C.uuid},{A.uuid}", (C, A)),
        ("GPU-893", (A,)),
        ("GPU-c,GPU-8932", (C, A)),
        (SLICE_OF_B, (B,)),
        (f"{SLICE_OF_B},{OTHER_SLICE_OF_B}", (B,)),
        (f"MIG-{C.uuid}/3/0", (C,)),
    ],
)
def test_names_become_cards_in_the_order_given(value: str | None, expected: tuple[Card, ...]) -> None:
    """Numbers, UUIDs, unique beginnings of UUIDs and MIG slices resolve to whole cards, each once, in order."""
    found = resolve(value)
    assert expected == found.cards
    assert not found.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ()),
        ("-1", ()),
        ("0,2,-1,1", (A, C)),
        ("0,7,1", (A,)),
        ("none", ()),
        ("GPU-89", ()),  # the beginning of two
        ("GPU-8932,GPU-ffff,GPU-c", (A,)),
        (f"{A.uuid},1", (A,)),
        (f"0,{B.uuid}", (A,)),
        ("MIG-unknown", ()),
        (f"{SLICE_OF_B},GPU-8932", (B,)),
    ],
)
def test_an_invalid_entry_hides_itself_and_all_after_it(value: str, expected: tuple[Card, ...]) -> None:
    """As CUDA does: empty, negative, out of range, ambiguous and mixed entries end the list, with a reason."""
    found = resolve(value)
    assert expected == found.cards
    assert "CUDA_VISIBLE_DEVICES" in found.reason


@pytest.mark.parametrize("value", ["0,1,0", f"{A.uuid},GPU-8932"])
def test_a_repeated_card_hides_everything(value: str) -> None:
    """CUDA shows nothing when a GPU is named twice, so neither do we."""
    found = resolve(value)
    assert found.cards == ()
    assert "twice" in found.reason


def test_numbers_between_different_models_are_refused_without_pci_order() -> None:
    """Fastest first cannot be predicted: a number would be a guess, a UUID is none."""
    cards = (A, OTHER)
    refused = resolve("1", cards, is_pci_order=False)
    assert (refused.cards, refused.has_certain_order) == ((), False)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refused.reason
    assert resolve("1", cards).cards == (OTHER,)
    assert resolve(OTHER.uuid, cards, is_pci_order=False).cards == (OTHER,)


def test_numbers_between_equal_models_are_in_pci_order() -> None:
    """Among GPUs of one model there is no fastest, so their numbers are certain."""
    assert resolve("1", is_pci_order=False).cards == (B,)


@pytest.mark.parametrize("is_pci_order", [True, False])
def test_numbers_are_refused_while_a_gpu_does_not_answer(is_pci_order: bool) -> None:
    """Whether CUDA counts a lost GPU cannot be known, so numbers are refused and UUIDs are not."""

    def resolve_incomplete(value: str | None) -> VisibleCards:
        return visible_cards(value, (A, C), is_pci_order=is_pci_order, mig_parent=mig_parent, is_complete=False)

    refused = resolve_incomplete("1")
    assert (refused.cards, refused.has_certain_order) == ((), False)
    assert "while a GPU does not answer" in refused.reason
    named = resolve_incomplete(C.uuid)
    assert (named.cards, named.has_certain_order) == ((C,), True)
    unset = resolve_incomplete(None)
    assert (unset.cards, unset.has_certain_order) == ((A, C), False)


def test_slices_are_marked() -> None:
    """A card of which a slice was named is marked, since its power is that of all slices."""
    assert frozenset({B.uuid}) == resolve(SLICE_OF_B).sliced
    assert frozenset() == resolve("1").sliced


@pytest.mark.parametrize("prefix", ["GPU-C0FFEE", "gpu-c0ffee00", C.uuid.upper()])
def test_case_does_not_matter_in_a_uuid(prefix: str) -> None:
    """UUIDs are found in either case."""
    assert card_with_prefix(prefix, (A, B, C)) == C
