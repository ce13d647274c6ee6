"""An uploaded trace as a file of this machine, as the search reads it: under its hash, written whole or not at all.

Knows nothing of what is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from pathlib import Path

from api.errors import UsageError
from db.errors import WorkloadNotFound
from db.workloads import UPLOADED, Workload, WorkloadStore
from tuner.errors import InvalidRequest, TraceChanged
from tuner.request import MAX_TOKENS, TuneRequest, WorkloadSpec


def uploaded_name(spec: WorkloadSpec) -> str | None:
    """Return the name of the uploaded trace that a workload replays; None where it replays none."""
    path = spec.trace_file
    return path.removeprefix(UPLOADED) if path is not None and path.startswith(UPLOADED) else None


def uploaded_trace(spec: WorkloadSpec, workloads: WorkloadStore) -> Workload | None:
    """Return the uploaded trace that a workload replays; None where it replays none.

    Raises InvalidRequest where there is no such trace, or where it has no times to be replayed.
    """
    name = uploaded_name(spec)
    if name is None:
        return None
    try:
        found = workloads.get(name)
    except WorkloadNotFound as error:
        remedy = "there is no uploaded workload of that name; GET /v1/workloads lists them, POST /v1/workloads adds one"
        raise InvalidRequest("workload.trace_file", spec.trace_file, remedy) from error
    if spec.scenario == "trace" and "duration_s" not in found.summary:
        remedy = f"it is of form {found.form}, without times; upload a trace, or choose another scenario"
        raise InvalidRequest("workload.trace_file", spec.trace_file, remedy)
    return found


def noted(spec: WorkloadSpec, trace: Workload | None) -> WorkloadSpec:
    """Return a workload with the hash of its uploaded trace, so that no other can take its place."""
    return spec if trace is None else dataclasses.replace(spec, trace_sha256=trace.sha256)


def as_long(request: TuneRequest, trace: Workload) -> TuneRequest:
    """Return a request whose requests are all as long as its trace's longest: for checks that read no file.

    Text has its length from a model's tokenizer; nothing is checked of it here.
    """
    longest = trace.summary.get("longest_tokens")
    if longest is None:
        return dataclasses.replace(request, workload=WorkloadSpec())
    spec = request.workload
    most_in = min(trace.summary["prompt_tokens"]["max"], spec.clip_prompt_tokens or MAX_TOKENS)
    most_out = min(trace.summary["output_tokens"]["max"], spec.clip_output_tokens or MAX_TOKENS)
    longest = max(2, min(longest, most_in + most_out))
    prompt = min(longest - 1, MAX_TOKENS)
    workload = WorkloadSpec(scenario="offline", prompt_tokens=(prompt,) * 2, output_tokens=(longest - prompt,) * 2)
    return dataclasses.replace(request, workload=workload)


def materialised(spec: WorkloadSpec, workloads: WorkloadStore | None, cache_dir: Path) -> WorkloadSpec:
    """Return a workload whose uploaded trace is a file in the cache; another workload as it is.

    Raises InvalidRequest where the trace is gone, TraceChanged where it is another than was noted, UsageError where the
    cache cannot be written.
    """
    name = uploaded_name(spec)
    if name is None:
        return spec
    if workloads is None:
        raise InvalidRequest("workload.trace_file", spec.trace_file, "there is no store here to take it from")
    sha256 = spec.trace_sha256
    if sha256 is None:
        found = uploaded_trace(spec, workloads)
        assert found is not None  # it has a name
        sha256 = found.sha256
    path = cache_dir / "workloads" / sha256
    if not _has(path, sha256):
        _write(path, _content(name, spec, workloads, sha256), cache_dir)
    return dataclasses.replace(spec, trace_file=str(path), trace_sha256=sha256)


def _content(name: str, spec: WorkloadSpec, workloads: WorkloadStore, sha256: str) -> bytes:
    try:
        content = workloads.content(name)
    except WorkloadNotFound as error:
        remedy = "it was deleted after the job was submitted; upload the same file again under that name"
        raise InvalidRequest("workload.trace_file", spec.trace_file, remedy) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise TraceChanged(f"{UPLOADED}{name}", submitted=sha256, found=found)
    return content


def _has(path: Path, sha256: str) -> bool:
    """Tell whether a file is there whole: one that was damaged is written anew."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _write(path: Path, content: bytes, cache_dir: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            scratch = Path(file.name)
            file.write(content)
        try:
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; make room or give access there, or set WATTFRONT_CACHE_DIR, which is "
            f"{cache_dir}"
        ) from error
