"""Legal changes of a kernel: none may give a finding."""

from __future__ import annotations

from planted_bugs.unseen.bug import Unseen, rows

_SEVERAL = {"num_ctas": 4, "block_n": 64}

# Three were meant as bugs but are not: with tiles of 64 keys the mask begins early enough; the
# first correction, exp(−inf), removes the initial value of l; and the next stage of V is released
# one tile later than necessary, which only waits longer.
LEGAL: tuple[Unseen, ...] = (
    *rows(
        "mask",
        (
            "every tile masked",
            ("v08", "v15"),
            "if (n0 + BLOCK_N > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {",
            "{",
            (),
        ),
        (
            "splits end at the last key",
            ("v05",),
            "min(kv_end, (split + 1) * chunk_rows)",
            "min(seqlen_kv, (split + 1) * chunk_rows)",
            (),
        ),
        (
            "mask left out below the diagonal's first row",
            ("v08", "v10", "v15", "v17"),
            "min(seqlen_kv, m0 + 1)",
            "min(seqlen_kv, m0 + 33)",
            (),
        ),
        shapes="causal",
    ),
    *rows(
        "fragments",
        ("l begins at 1", ("v01", "v02"), "float l = 0.0f;", "float l = 1.0f;", ()),
        (
            "l begins at 1",
            ("v08", "v14"),
            "l_rmem[2] = {0.0f, 0.0f}",
            "l_rmem[2] = {1.0f, 1.0f}",
            (),
        ),
        ("a smaller swizzle", ("v09", "v10"), "row % 8 : row / 2 % 4", "row % 4 : row / 2 % 4", ()),
        ("rows without padding", ("v08",), "= HEAD_DIM + VECTOR;", "= HEAD_DIM;", ()),
        (
            "sums over rounded P",
            ("v02",),
            "            l += p;",
            "            l += to_float(to_element(p));",
            (),
        ),
        (
            "a barrier more",
            ("v03", "v08"),
            "        __syncthreads();\n    }",
            "        __syncthreads();\n        __syncthreads();\n    }",
            (),
        ),
        (
            "a rescale by each lane for itself",
            ("v20",),
            "is_grown = __any_sync(FULL_WARP, is_grown);",
            "",
            (),
        ),
        ("maximum from a low number on", ("v02",), "float m = -INFINITY;", "float m = -1e30f;", ()),
        (
            "a division in place of a product",
            ("v01",),
            "acc_rmem[d] * inv_l)",
            "acc_rmem[d] / l + 0.0f * inv_l)",
            (),
        ),
        (
            "consumers keep what they have",
            ("v16",),
            "more_registers<CONSUMER_REGISTERS>();",
            "",
            (),
        ),
        (
            "every tile of K waited for twice",
            ("v16",),
            "mbarrier_wait(k_full + stage, parity);",
            "mbarrier_wait(k_full + stage, parity);\n"
            "        mbarrier_wait(k_full + stage, parity);",
            (),
        ),
        (
            "a fence of all memory, too",
            ("v15",),
            "    async_proxy_fence();",
            "    async_proxy_fence();\n    __threadfence();",
            (),
        ),
        config={},
    ),
    *rows(
        "mbarrier",
        (
            "V's next stage given back",
            ("v19", "v20"),
            "mbarrier_arrive(v_empty + last_stage);",
            "mbarrier_arrive(v_empty + stage);",
            (),
        ),
        config=_SEVERAL,
    ),
)
