"""What every export says of itself, and names that no command may misread."""

from __future__ import annotations

import shlex

import pytest

from api.export.forms import FORMS, export
from api.export.recipe import NotExportable, label_of, model_id, one_line
from tests.api.export.making import command_of, make_recipe, make_request, make_result

HOSTILE = ("a; rm -rf /", "$(id)", "`id`", "a'b\"c", "a b", "a\\", "ünï", "!!", "a#b", "*")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_labels_what_nobody_measured(form: str) -> None:
    """No form gives simulated figures without saying that nothing was measured."""
    made = export(make_recipe(sm_clock_cap_mhz=1200), form)
    assert b"SIMULATED: nothing was measured" in made.content
    assert made.file_name.startswith("wattfront-f8c3794c-3-")


@pytest.mark.parametrize("model", HOSTILE)
@pytest.mark.parametrize(("form", "begins", "place"), [("vllm", "vllm", 2), ("sglang", "python3", 4),
                                                       ("trtllm", "trtllm-serve", 1)])  # fmt: skip
def test_a_models_name_stays_one_word(form: str, begins: str, place: int, model: str) -> None:
    """Whatever a model is called, a shell reads its name as one word and nothing else of it."""
    made = export(make_recipe(engine="embedded", precision="fp32", model=model), form)
    assert command_of(made.content, begins=begins)[place] == model


@pytest.mark.parametrize("model", ["--help", "-x", "a\nrm -rf /", "a\0b", "\ud800"])
def test_a_name_that_a_command_would_misread_is_refused(model: str) -> None:
    """A name that reads as an option, or that ends a line, is exported in no form."""
    with pytest.raises(NotExportable, match="no command can name it"):
        make_recipe(engine="embedded", precision="fp32", model=model)


def test_an_unknown_form_is_refused_with_those_there_are() -> None:
    """The message names the form that was asked for, and all forms."""
    with pytest.raises(NotExportable, match="form is 'helm'; choose vllm, sglang, trtllm"):
        export(make_recipe(), "helm")


def test_names_of_ours_become_ids_that_others_find() -> None:
    """A shape of the catalogue and a built-in model are exported by their Hugging Face id, anything else as it is."""
    named = {
        model: model_id(make_request(model=model))
        for model in ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "smollm2-135m", "/models/x")
    }
    assert named == {
        "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
        "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "/models/x": "/models/x",
    }


def test_a_name_of_an_operators_file_is_told_to_be_one() -> None:
    """What `chat-8b` stands for is known to one machine alone, so the export says that something else belongs there."""
    assert b"model chat-8b is a bare name" in export(make_recipe(engine="embedded", model="chat-8b"), "vllm").content
    assert b"bare name" not in export(make_recipe(), "vllm").content


def test_a_measured_point_has_no_label() -> None:
    """Only simulations and estimates are labelled."""
    assert label_of(make_result({"max_batch": 4}, engine="embedded")) is None


def test_a_comment_cannot_be_left() -> None:
    """Line breaks and control characters become spaces, and a long text is cut."""
    assert one_line("a\nb\rc\x1b\u2028d") == "a b c  d"
    assert len(one_line("x" * 1000)) == 300
    assert shlex.split(one_line("a 'b'")) == ["a", "b"]
