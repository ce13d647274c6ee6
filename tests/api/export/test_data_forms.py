"""JSON and CSV: every figure of a point with its label, and nothing that a reader stumbles over."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from api.export import csv_form, json_form
from api.export.recipe import recipe_of
from tests.api.export.making import make_recipe, make_request, make_result


def test_json_has_every_knob_and_where_figures_come_from() -> None:
    """A program finds settings that the job did not search, intervals, and that the figures are simulated."""
    document = json.loads(json_form.render(make_recipe(sm_clock_cap_mhz=1410)))
    assert (document["is_simulated"], document["label"].split(":")[0], document["aiperf"]) == (True, "SIMULATED", None)
    assert (document["knobs"]["kv_precision"], document["device_settings"]) == ("auto", {"sm_clock_cap_mhz": 1410})
    assert document["evidence"]["tok_per_j"] == {"value": 2.0, "low": 1.9, "high": 2.1}


def test_aiperfs_names_are_of_measured_gpus_only() -> None:
    """A measured point of a GPU carries AIPerf's names: tokens per joule, millijoules a token, watts."""
    recipe = recipe_of(make_request(engine="embedded"), make_result({"max_batch": 4}, engine="embedded"))
    assert json.loads(json_form.render(recipe))["aiperf"] == {
        "output_tokens_per_joule": 2.0,
        "output_tps_per_watt": 2.0,
        "energy_per_output_token": 500.0,
        "average_gpu_power": 10.0,
    }


def test_csv_is_one_row_that_reads_back() -> None:
    """Head and row have as many cells; an unknown figure is empty, and figures read back as they are."""
    (row,) = csv.DictReader(io.StringIO(csv_form.render(make_recipe()).decode()))
    assert (row["tok_per_j"], row["max_batch"], row["label"].split(":")[0]) == ("2.0", "64", "SIMULATED")
    unknown = replace(make_recipe(), result=replace(make_recipe().result, quality=None))
    (row,) = csv.DictReader(io.StringIO(csv_form.render(unknown).decode()))
    assert row["quality"] == ""


def test_csv_holds_no_formula() -> None:
    """A model whose name begins as a formula does is text to a spreadsheet."""
    recipe = make_recipe(engine="embedded", precision="fp32", model='=HYPERLINK("http://x")')
    (row,) = csv.DictReader(io.StringIO(csv_form.render(recipe).decode()))
    assert row["model"] == '\'=HYPERLINK("http://x")'
