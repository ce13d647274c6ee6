"""The catalogue finds models by name and id."""

from __future__ import annotations

import pytest

from engine.errors import UnknownModel
from engine.simulated import catalogue
from engine.simulated.shapes import load_shape


@pytest.mark.parametrize("name", catalogue.names())
def test_every_entry_is_a_shape_with_ids(name: str) -> None:
    """Each catalogue entry can be read, goes by its own name, and says which Hugging Face models it stands for."""
    assert load_shape(name).name == name
    assert all(known.count("/") == 1 for known in catalogue.ids(name))
    assert catalogue.ids(name)


def test_no_id_stands_for_two_shapes() -> None:
    """A Hugging Face id leads to one entry only."""
    ids = [known for name in catalogue.names() for known in catalogue.ids(name)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b-2507"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("DEEPSEEK-AI/deepseek-v3.1", "deepseek-v3.1"),
    ],
)
def test_models_are_found_by_name_and_id_in_any_case(model: str, name: str) -> None:
    """Catalogue names and Hugging Face ids are found whatever their case, and whichever way weights are stored."""
    assert catalogue.find(model)[0] == name


@pytest.mark.parametrize("model", ["", "  ", "gpt-5", "somebody/else"])
def test_unknown_models_are_refused_with_names(model: str) -> None:
    """What is not in the catalogue is refused with at least one name that is."""
    with pytest.raises(UnknownModel) as refusal:
        catalogue.find(model)
    assert any(name in str(refusal.value) for name in catalogue.names())
