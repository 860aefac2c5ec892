"""Special registers of PTX as expressions of the runtime."""

from __future__ import annotations

_SELF = "coh::self->"
_LANE = f"{_SELF}lane"

SPECIAL_REGISTERS = {
    "laneid": _LANE,
    "warpid": f"{_SELF}warp",
    "nwarpid": "32",
    # The CPU is one SM.
    "smid": "0",
    "nsmid": "1",
    "gridid": "0",
    "clock": "coh::ptx::clock_ticks()",
    "clock_hi": "coh::ptx::clock_ticks() >> 32",
    "clock64": "coh::ptx::clock_ticks()",
    "globaltimer": "coh::ptx::clock_ticks()",
    "globaltimer_lo": "coh::ptx::clock_ticks()",
    "globaltimer_hi": "coh::ptx::clock_ticks() >> 32",
    "lanemask_eq": f"1u << {_LANE}",
    "lanemask_lt": f"(1u << {_LANE}) - 1",
    "lanemask_le": f"(uint32_t)((2ull << {_LANE}) - 1)",
    "lanemask_gt": f"~(uint32_t)((2ull << {_LANE}) - 1)",
    "lanemask_ge": f"~((1u << {_LANE}) - 1)",
    "dynamic_smem_size": f"{_SELF}dynamic_smem_bytes",
    **{
        f"{ptx}.{axis}": f"{_SELF}{name}.{axis}"
        for ptx, name in (
            ("tid", "thread_idx"),
            ("ctaid", "block_idx"),
            ("ntid", "block_dim"),
            ("nctaid", "grid_dim"),
            ("cluster_nctaid", "cluster_dim"),
        )
        for axis in "xyz"
    },
    **{
        f"{ptx}.{axis}": f"{_SELF}{name}.{axis} {operation} {_SELF}cluster_dim.{axis}"
        for ptx, name, operation in (
            ("clusterid", "block_idx", "/"),
            ("nclusterid", "grid_dim", "/"),
            ("cluster_ctaid", "block_idx", "%"),
        )
        for axis in "xyz"
    },
    "cluster_ctarank": f"{_SELF}cluster_rank",
    "cluster_nctarank": f"{_SELF}cluster_size",
    "is_explicit_cluster": f"{_SELF}cluster_size > 1",
}
