"""CSV traces, row by row: Azure's dates in every style, BurstGPT's columns by name, faults told by column."""

from __future__ import annotations

import pytest

from tuner.trace_csv import CsvReader
from tuner.traces import FileFault, RowFault, Trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST_GPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_GPT_8 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def read(header: str, *rows: str) -> Trace:
    reader = CsvReader(header)
    for row in rows:
        reader.take(row)
    return reader.finish("0" * 64)


def fault_of(header: str, *rows: str) -> RowFault:
    with pytest.raises(RowFault) as refused:
        read(header, *rows)
    return refused.value


def lengths(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.prompt_tokens, trace.output_tokens, strict=True))


def test_azure_of_2023_keeps_its_seventh_digit() -> None:
    """BUG-51: arrivals 1 ms, 12 ms and half a millisecond apart stay so, whatever the seventh digit is."""
    clocks = ("00.0030000", "00.0040000", "00.0160000", "00.0165000", "00.0165003")
    trace = read(AZURE, *(f"2023-11-16 18:41:{clock},3021,11" for clock in clocks))
    assert (trace.form, trace.num_requests) == ("azure", 5)
    assert pytest.approx([0.0, 0.001, 0.013, 0.0135, 0.0135003], abs=1e-9) == list(trace.offsets_s)


def test_azure_of_2024_has_offsets_in_several_styles() -> None:
    """BUG-51: six digits, none, a `T`, a `Z` and another zone's offset are one file with one clock."""
    trace = read(
        AZURE,
        "2024-05-11 06:00:00.104220+00:00,1877,9",
        "2024-05-11T06:00:01Z,64,21",
        "2024-05-11 08:00:02.5+02:00,5240,3",
        "2024-05-12 06:00:00.104220+00:00,7,7",
    )
    assert pytest.approx([0.0, 0.89578, 2.39578, 86_400.0]) == list(trace.offsets_s)
    assert lengths(trace) == [(1877, 9), (64, 21), (5240, 3), (7, 7)]
    assert trace.notes == ()


@pytest.mark.parametrize("row", [" 2023-11-16 18:41:09.0000005 , 1 , 1 ", '"2023-11-16 18:41:09.0000005","1","1"'])
def test_blanks_and_quotes_around_a_value_change_nothing(row: str) -> None:
    """BUG-51: a time with blanks or quotes around it has its seventh digit as well."""
    assert pytest.approx([0.0, 5e-7], abs=1e-12) == list(read(AZURE, "2023-11-16 18:41:09,1,1", row).offsets_s)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (("2024-05-11 06:00:00", "2024-05-11 06:00:01+00:00"), "with an offset, but the first row's is without one"),
        (("2024-05-11 06:00:00Z", "2024-05-11 06:00:01"), "without an offset, but the first row's is with one"),
    ],
)
def test_offsets_are_everywhere_or_nowhere(times: tuple[str, str], words: str) -> None:
    """BUG-51: a time that may be hours off is refused by column and value, with what the first row has."""
    fault = fault_of(AZURE, *(f"{time},1,1" for time in times))
    assert ("TIMESTAMP", times[1]) == (fault.column, fault.value)
    assert words in str(fault)


def test_columns_may_stand_in_any_order_among_others() -> None:
    """Azure's columns are found by their names, quoted or with blanks around them."""
    trace = read('GeneratedTokens,"Region", TIMESTAMP,ContextTokens', "5,west,2024-05-11,7", "6,east,2024-05-12,8")
    assert lengths(trace) == [(7, 5), (8, 6)]


def test_burst_gpt_of_six_columns() -> None:
    """BUG-53: calls that failed are left out and counted, as are empty prompts; a wrong total is told and not used."""
    trace = read(
        BURST_GPT,
        "7,ChatGPT,388,21,409,Conversation log",
        "52,GPT-4,512,0,512,API log",
        "53,GPT-4,512,0,512,API log",
        "60,GPT-4,0,12,12,API log",
        "131.5,ChatGPT,1204,266,9,Conversation log",
    )
    assert (
        trace.form,
        list(trace.offsets_s),
        lengths(trace),
    ) == ("burstgpt", [0.0, 124.5], [(388, 21), (1204, 266)])
    assert trace.notes == (
        "2 rows have 0 response tokens, as calls that failed have, and were left out",
        "1 rows have 0 request tokens and were left out",
        "1 rows have a total that is not the sum of both; it is not used",
    )


def test_burst_gpt_of_eight_columns() -> None:
    """BUG-53: with session and elapsed time in the midst, empty and 0 too, the same three columns are read."""
    trace = read(BURST_GPT_8, "9,1842,6.4,ChatGPT,230,118,348,Conversation log", "11,,0,GPT-4,74,35,109,API log")
    assert lengths(trace) == [(230, 118), (74, 35)]
    assert trace.notes == ()


@pytest.mark.parametrize(
    ("header", "row", "column", "value", "words"),
    [
        (AZURE, "noon,1,1", "TIMESTAMP", "noon", "give a date and time"),
        (AZURE, "2024-05-11,5.0,1", "ContextTokens", "5.0", "ContextTokens is '5.0'; give a whole number"),
        (
            AZURE,
            "2024-05-11,1,0",
            "GeneratedTokens",
            0,
            "its output has 0 tokens; give 1 to 1000000, or remove the row",
        ),
        (AZURE, "2024-05-11,1", "", "2024-05-11,1", "it has 2 fields, not 3; correct or remove the row"),
        (BURST_GPT, "inf,GPT-4,1,1,2,x", "Timestamp", "inf", "Timestamp is 'inf'; give seconds"),
        (BURST_GPT, "1,GPT-4,1,-1,0,x", "Response tokens", -1, "its output has -1 tokens"),
        (BURST_GPT, "1,GPT-4,,1,1,x", "Request tokens", "", "Request tokens is ''; give a whole number"),
    ],
)
def test_a_fault_names_column_value_and_remedy(header: str, row: str, column: str, value: object, words: str) -> None:
    """A row is refused by its column, with what stands there and what to do; nothing of it is taken."""
    fault = fault_of(header, row)
    assert (column, value) == (fault.column, fault.value)
    assert words in str(fault)


def test_rows_of_failures_alone_are_no_trace() -> None:
    """BUG-53: a file in which every call failed is refused with their number, not run without requests."""
    with pytest.raises(FileFault, match=r"it has no requests \(1 rows have 0 response tokens"):
        read(BURST_GPT, "52,GPT-4,512,0,512,API log")
