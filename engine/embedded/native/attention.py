"""Rotation, cache writes and attention in place, for a decoder layer's heads."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_void_p

import torch

from engine.embedded.attention import Angles, AttentionSpec
from engine.embedded.kv_cache import KVCache
from engine.embedded.native.library import STORED
from engine.embedded.step_input import StepInput


class _Cache(Structure):
    """`Cache` of cache.h."""

    _fields_ = [
        ("data", c_void_p),
        ("scales", c_void_p),
        ("stored", c_int64),
        ("block_size", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
    ]


class _Attention(Structure):
    """`Attention` of attention.cpp."""

    _fields_ = [
        ("queries", c_void_p),
        ("out", c_void_p),
        ("cache", POINTER(_Cache)),
        ("positions", c_void_p),
        ("sequences", c_void_p),
        ("tables", c_void_p),
        ("width", c_int64),
        ("num_rows", c_int64),
        ("num_heads", c_int64),
        ("q_stride", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int64),
    ]


class NativeAttention:
    """Attention of one layer over its part of the cache."""

    def __init__(self, kernels: ctypes.CDLL, cache: KVCache, layer: int, spec: AttentionSpec, num_heads: int) -> None:
        self._place, self._attend = kernels.wf_place, kernels.wf_attend
        self._place.argtypes = (*[c_void_p] * 5, POINTER(_Cache), c_int64, c_int64, c_int)
        self._attend.argtypes = (POINTER(_Attention), c_int)
        data, scales = cache.stored(layer)
        num_kv_heads, head_dim = data.shape[3:]
        self._num_heads, self._width = num_heads, num_heads * head_dim
        self._cache = _Cache(
            data=data.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            stored=STORED[data.dtype],
            block_size=cache.block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )
        #: Holds what the structures point to.
        self._held = (data, scales)
        self._attention = _Attention(
            cache=ctypes.pointer(self._cache),
            num_heads=num_heads,
            q_stride=(num_heads + 2 * num_kv_heads) * head_dim,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            window=spec.window or 0,
        )

    def __call__(self, qkv: torch.Tensor, angles: Angles, step: StepInput) -> torch.Tensor:
        """Return the attention output, fp32 (rows, num_heads x head_dim), and fill the cache.

        `qkv` is (rows, num_heads + 2 num_kv_heads, head_dim) contiguous, and rotated in place; `angles` are cos and sin
        of all positions, (max_context, 1, head_dim) each.
        """
        tables = step.tables
        assert tables is not None  # the runner makes them for a cache that the kernels read
        num_rows, threads = qkv.shape[0], torch.get_num_threads()
        queries, positions = qkv.data_ptr(), step.positions.data_ptr()
        self._place(
            queries,
            angles[0].data_ptr(),
            angles[1].data_ptr(),
            positions,
            step.slots.data_ptr(),
            byref(self._cache),
            num_rows,
            self._num_heads,
            threads,
        )
        out = torch.empty((num_rows, self._width))
        attention = self._attention
        attention.queries, attention.out, attention.num_rows = queries, out.data_ptr(), num_rows
        attention.positions, attention.sequences = positions, tables.sequences.data_ptr()
        attention.tables, attention.width = tables.blocks.data_ptr(), tables.blocks.shape[1]
        self._attend(byref(attention), threads)
        return out
