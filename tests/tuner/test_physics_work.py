"""What workloads and points ask of a machine, as the physical model reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tuner.test_physics import work_of
from tuner.errors import InvalidRequest
from tuner.physics import Demand, Work
from tuner.point import OperatingPoint
from tuner.request import WorkloadSpec


class TestDemand:
    """What a workload asks for on average."""

    def test_ranges_count_by_their_middle(self) -> None:
        """Requests between two lengths ask for their mean; those kept in flight have no rate."""
        demand = Demand.of(WorkloadSpec(prompt_tokens=(100, 500), output_tokens=(10, 30), concurrency=4))
        assert Demand(prompt_tokens=300, output_tokens=20, requests_per_s=np.inf, concurrency=4) == demand

    def test_a_trace_counts_by_what_is_in_it(self, tmp_path: Path) -> None:
        """Three requests over two seconds, and a mean gap more, are one a second, and half of it at half speed."""
        path = tmp_path / "trace.jsonl"
        path.write_text(
            '{"timestamp": 0, "input_length": 10, "output_length": 4}\n'
            '{"timestamp": 1000, "input_length": 20, "output_length": 5}\n'
            '{"timestamp": 2000, "input_length": 60, "output_length": 6}\n',
            encoding="utf-8",
        )
        demand = Demand.of(WorkloadSpec(scenario="trace", trace_file=str(path), time_scale=2.0))
        assert Demand(prompt_tokens=30, output_tokens=5, requests_per_s=0.5, concurrency=None) == demand

    def test_a_trace_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        """A trace file that cannot be read raises an error that names the field."""
        with pytest.raises(InvalidRequest, match="trace_file"):
            Demand.of(WorkloadSpec(scenario="trace", trace_file=str(tmp_path / "none.jsonl")))


class TestWork:
    """What points ask of a machine."""

    def test_knobs_that_a_point_lacks_count_as_usual(self) -> None:
        """Without batch, precision and clock a point runs 8 sequences of 16 bits at the full clock in one chunk."""
        work = Work.of([OperatingPoint.of({"policy": "decode_first"})], WorkloadSpec(prompt_tokens=(100, 100)), {})
        found = (work.max_batch, work.weight_bits, work.kv_bits, work.clock, work.chunk, work.num_chunks)
        assert [float(one[0]) for one in found] == [8.0, 16.0, 16.0, 1.0, 100.0, 1.0]

    def test_a_layout_spreads_weights_and_requests(self) -> None:
        """Two by two GPUs hold a quarter of the weights each; two replicas run half of what is in flight."""
        workload = WorkloadSpec(concurrency=10, prompt_tokens=(500, 500))
        work = work_of(
            {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "max_batch": 64, "prefill_chunk": 200},
            workload=workload,
        )
        assert [float(work.weight_bits[0]), float(work.max_batch[0]), float(work.num_chunks[0])] == [4.0, 5.0, 3.0]

    def test_some_of_the_points(self) -> None:
        """`at` gives the work of the points asked for, in the order asked."""
        work = work_of({"max_batch": 4}, {"max_batch": 8}, {"max_batch": 16}).at(np.array([2, 0]))
        assert work.max_batch.tolist() == [16.0, 4.0]
