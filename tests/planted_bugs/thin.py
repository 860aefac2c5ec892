"""A third set of bugs, for what the first two cover little: pages, descriptors, v11 to v22, LSE.

Written before any of it was run; the same rules hold. A variant that ends in `.cu` is an own kernel
of `tests/own_kernels/kernels`, with its description beside it.
"""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_PAGED = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_EMPTY_SPLITS = (Problem(1, 2, 3, 64, seqlen_kv=20),)
_WIDE = (Problem(1, 2, 113, 128),)
_OWN = (Problem(2, 4, 77, 64, num_heads_kv=2),)
_SEVERAL = {"num_ctas": 4, "block_n": 64}
_CLUSTER = {"cluster_size": 2}

_PAGE = (r"page", r"block_table")
_PHASE = (r"phase", r"arriv", r"another mbarrier")
_DESCRIPTOR = (r"descriptor",)
_BOX = (r"box", r"columns")

THIN: tuple[Unseen, ...] = (
    *rows(
        "pages",
        (
            "the page behind the tile's",
            ("v21",),
            "pages[tile / TILES_PER_PAGE]",
            "pages[tile / TILES_PER_PAGE + 1]",
            _PAGE,
        ),
        (
            "tiles taken for pages",
            ("v21",),
            "pages[tile / TILES_PER_PAGE]",
            "pages[tile % TILES_PER_PAGE]",
            _PAGE,
        ),
        (
            "the table is not asked",
            ("v21",),
            "pages[tile / TILES_PER_PAGE] : 0",
            "tile / TILES_PER_PAGE : 0",
            _PAGE,
        ),
        (
            "the first sequence's table for all",
            ("v21",),
            "block_table + (size_t)blockIdx.z * (",
            "block_table + (size_t)0 * (",
            _PAGE,
        ),
        (
            "pages of a sequence rounded down",
            ("v21",),
            "((seqlen_kv - 1) / PAGE_SIZE + 1)",
            "(seqlen_kv / PAGE_SIZE)",
            _PAGE,
        ),
        (
            "the first rows of every page",
            ("v21",),
            "tile % TILES_PER_PAGE * BLOCK_N",
            "0 * tile",
            _PAGE,
        ),
        (
            "the last tile's page",
            ("v21",),
            "next_page = page_of(tile + STAGES * NUM_WARPS);",
            "next_page = page_of(tile + (STAGES - 1) * NUM_WARPS);",
            _PAGE,
        ),
        (
            "the first warp's page for all",
            ("v21",),
            "page_of(first_tile + warp + i * NUM_WARPS)",
            "page_of(first_tile + i * NUM_WARPS)",
            _PAGE,
        ),
        (
            "heads of a page exchanged",
            ("v21",),
            "num_heads_kv + kv_head_index) * PAGE_SIZE",
            "num_heads_kv + num_heads_kv - 1 - kv_head_index) * PAGE_SIZE",
            (*_PAGE, r"head"),
        ),
        (
            "V of the first page",
            ("v21",),
            "v + start, seqlen_kv",
            "v + start - (size_t)page * num_heads_kv * PAGE_SIZE * HEAD_DIM, seqlen_kv",
            _PAGE,
        ),
        (
            "pages half as long",
            ("v21",),
            "kv_head_index) * PAGE_SIZE +",
            "kv_head_index) * (PAGE_SIZE / 2) +",
            _PAGE,
        ),
        (
            "V's rows to the end of the page",
            ("v21",),
            "v + start, seqlen_kv - tile * BLOCK_N);",
            "v + start, PAGE_SIZE);",
            (*_PAGE, r"behind the last key"),
        ),
        on=_PAGED,
    ),
    *rows(
        "descriptors",
        (
            "groups of rows half as far apart",
            ("v15", "v22"),
            "8 * ROW_BYTES >> 4",
            "4 * ROW_BYTES >> 4",
            _DESCRIPTOR,
        ),
        (
            "the other swizzle in the descriptor",
            ("v16", "v20"),
            "? 1 : ROW_BYTES == 64 ? 2 :",
            "? 2 : ROW_BYTES == 64 ? 1 :",
            (*_DESCRIPTOR, r"swizzle"),
        ),
        (
            "the address in 64 KiB",
            ("v17",),
            "(address & 0x3ffff)",
            "(address & 0xffff)",
            (*_DESCRIPTOR, r"address"),
        ),
        header="hopper.cuh",
    ),
    *rows(
        "descriptors",
        (
            "boxes of V half as far apart",
            ("v16", "v18"),
            "block = leading >> 4;",
            "block = leading >> 5;",
            (*_DESCRIPTOR, *_BOX),
        ),
        header="hopper.cuh",
        on=_WIDE,
    ),
    *rows(
        "descriptors",
        (
            "columns half as far apart",
            ("v15", "v16"),
            "step % STEPS * 32, 16)",
            "step % STEPS * 16, 16)",
            (*_DESCRIPTOR, *_BOX),
        ),
        (
            "rows of V half as far apart",
            ("v19", "v20"),
            "v_first + (step * 16 * ROW_BYTES >> 4)",
            "v_first + (step * 8 * ROW_BYTES >> 4)",
            (*_DESCRIPTOR, r"V's rows", r"rows of V"),
        ),
        (
            "second half of K at its middle",
            ("v22",),
            "half * (HALF_BYTES >> 4)",
            "half * (HALF_BYTES >> 5)",
            (*_DESCRIPTOR, r"rows of K"),
        ),
    ),
    *rows(
        "boxes",
        (
            "boxes of K and V half as far apart",
            ("v16", "v17"),
            "box * BLOCK_N * ROW_BYTES, map",
            "box * (BLOCK_N / 2) * ROW_BYTES, map",
            _BOX,
        ),
        (
            "boxes of V half as far apart",
            ("v22",),
            "v_smem + box * KEYS * ROW_BYTES",
            "v_smem + box * HALF_KEYS * ROW_BYTES",
            _BOX,
        ),
        (
            "every box of Q from column 0",
            ("v16", "v17"),
            "&q_map, q_full, box * COLUMNS",
            "&q_map, q_full, 0 * COLUMNS",
            _BOX,
        ),
        (
            "every box of O at column 0",
            ("v22",),
            "tma_store(&out_map, rows, box * COLUMNS",
            "tma_store(&out_map, rows, 0 * COLUMNS",
            (*_BOX, r"[Nn]ever written"),
        ),
        on=_WIDE,
    ),
    *rows(
        "boxes",
        (
            "rows of a warp stored from the wrong place",
            ("v22",),
            "warp % 4 * 16) * ROW_BYTES;",
            "warp % 4 * 8) * ROW_BYTES;",
            (r"query row", r"rows that hold", r"rows"),
        ),
    ),
    *rows(
        "mbarrier",
        (
            "twice the bytes expected",
            ("v22",),
            "mbarrier_arrive_expect(k_full, HALF_BYTES);",
            "mbarrier_arrive_expect(k_full, TILE_BYTES);",
            (r"bytes",),
        ),
        (
            "half of the bytes expected",
            ("v16", "v17"),
            "mbarrier_arrive_expect(full + stage, TILE_BYTES);",
            "mbarrier_arrive_expect(full + stage, TILE_BYTES / 2);",
            (r"bytes",),
        ),
        (
            "too few arrivals for a stage",
            ("v17", "v18"),
            "mbarrier_init(v_empty + stage, 4 * CONSUMERS);",
            "mbarrier_init(v_empty + stage, 3 * CONSUMERS);",
            _PHASE,
        ),
        (
            "the second half of K is not waited for",
            ("v22",),
            "if (half == 1) mbarrier_wait(k_full, 0);",
            "",
            (*_PHASE, r"copy not complete"),
        ),
    ),
    *rows(
        "mbarrier",
        (
            "O of the other phase",
            ("v19", "v20"),
            "mbarrier_wait(o_full + round % 2, round / 2 % 2 ^ 1);",
            "mbarrier_wait(o_full + round % 2, round / 2 % 2);",
            _PHASE,
        ),
        (
            "Q's phase of every round",
            ("v20",),
            "mbarrier_wait(q_full + round % 2, round / 2 % 2);",
            "mbarrier_wait(q_full + round % 2, round % 2);",
            _PHASE,
        ),
        (
            "every lane arrives with O",
            ("v19",),
            "if (lane == 0) mbarrier_arrive(o_full + round % 2);",
            "mbarrier_arrive(o_full + round % 2);",
            _PHASE,
        ),
        (
            "rounds backwards begin a CTA too late",
            ("v20",),
            "gridDim.x - 1 - blockIdx.x);\n}",
            "gridDim.x - blockIdx.x);\n}",
            (r"[Nn]ever written", r"query (row|tile)"),
        ),
        (
            "rounds backwards begin a CTA too late",
            ("v19",),
            "clusters - 1 - cluster);\n}",
            "clusters - cluster);\n}",
            (r"[Nn]ever written", r"query (row|tile)"),
        ),
        config=_SEVERAL,
        on=(Problem(1, 3, 700, 64),),
    ),
    *rows(
        "barrier",
        (
            "O over Q that is still read",
            ("v22",),
            "    named_barrier(1 + group, 4 * 32);\n",
            "",
            (r"wgmma", r"still read", r"barrier \d"),
        ),
        (
            "lanes' O not waited for",
            ("v22",),
            "    __syncwarp();\n    if (elect_one()) {",
            "    if (elect_one()) {",
            (r"__syncwarp",),
        ),
        (
            "the turn handed to oneself",
            ("v17",),
            "TURNS + (group + 1) % CONSUMERS;",
            "TURNS + group;",
            (r"barrier \d",),
        ),
    ),
    *rows(
        "wgmma",
        (
            "one group of products not waited for",
            ("v22",),
            "wgmma_wait<0>(s_rmem[0], s_rmem[1]);",
            "wgmma_wait<1>(s_rmem[0], s_rmem[1]);",
            (r"running wgmma",),
        ),
    ),
    *rows(
        "softmax",
        (
            "maximum over every second eight keys",
            ("v22",),
            "i = 2 * r + 4; i < KEYS / 2; i += 4)",
            "i = 2 * r + 4; i < KEYS / 2; i += 8)",
            (r"maximum",),
        ),
        (
            "l is not rescaled",
            ("v20",),
            "            l_rmem[r] *= correction[r];\n",
            "",
            (r"rescale", r"row sum"),
        ),
        (
            "correction upside down",
            ("v11", "v13"),
            "fast_exp2(m_scaled[r] - m_new)",
            "fast_exp2(fminf(m_new - m_scaled[r], 100.0f))",
            (r"rescale", r"correction", r"maximum"),
        ),
        (
            "maximum over half of the tile's keys",
            ("v11", "v13"),
            "tile < BLOCK_N / 8; tile++) {\n                const float(&scores)",
            "tile < BLOCK_N / 16; tile++) {\n                const float(&scores)",
            (r"maximum",),
        ),
        (
            "maximum of the first warp for all",
            ("v12",),
            "m = fmaxf(m, m_smem[w * BLOCK_M + row0 + i * 8]);",
            "m = fmaxf(m, m_smem[row0 + i * 8]);",
            (r"maximum",),
        ),
        (
            "sum of the upper row for both",
            ("v12",),
            "sum_rmem[i / 2][i % 2 * 2]",
            "sum_rmem[i / 2][i % 2]",
            (r"row sum",),
        ),
        (
            "sum of the first warp for all",
            ("v12",),
            "l_smem[w * BLOCK_M + row0 + t * 16 + r * 8]",
            "l_smem[row0 + t * 16 + r * 8]",
            (r"row sum",),
        ),
    ),
    *rows(
        "key loop",
        (
            "shares without the start",
            ("v13",),
            "return START_TILES + tiles_of(tile, seqlen_kv);",
            "return tiles_of(tile, seqlen_kv);",
            (r"leav(es|ing) out", r"[Nn]ever written", r"share"),
        ),
        (
            "pieces begin at the first key",
            ("v13",),
            "k + kv_head + (size_t)kv_begin * HEAD_DIM + copy_offset;",
            "k + kv_head + copy_offset;",
            (r"key tile", r"leav(es|ing) out", r"twice", r"piece"),
        ),
        (
            "V a tile too far on",
            ("v13",),
            "(v - k) + (i - 1) * TILE",
            "(v - k) + i * TILE",
            (r"V of", r"key tile", r"V.* too far"),
        ),
        (
            "V a tile too far on",
            ("v11",),
            "K_TILE, lane_source + (i - 1) * SOURCE_TILE",
            "K_TILE, lane_source + i * SOURCE_TILE",
            (r"V of", r"key tile", r"V.* too far"),
        ),
        config={"block_n": 32},
        on=(Problem(1, 3, 200, 64),),
    ),
    *rows(
        "fusion",
        (
            "every CTA of a cluster reads its own",
            ("v21", "v14"),
            "load_2_of_cta(share + 2 * (part + j * MERGE_THREADS), r)",
            "load_2_of_cta(share + 2 * (part + j * MERGE_THREADS), rank)",
            (r"cluster", r"split", r"fusion"),
        ),
        (
            "nobody waits for the cluster",
            ("v21", "v14"),
            "        cluster_wait();\n        float m_of",
            "        float m_of",
            (r"cluster",),
        ),
        config=_CLUSTER,
        on=_PAGED,
    ),
    *rows(
        "fusion",
        (
            "splits without keys are fused",
            ("v14", "v21"),
            "            if (m_part == -INFINITY) continue;",
            "            if (false) continue;",
            (r"uninitial", r"[Nn]ever written", r"empty"),
        ),
        on=_EMPTY_SPLITS,
    ),
    *rows(
        "fusion",
        (
            "the last but one fuses",
            ("v14", "v21"),
            "== PARTS - 1;",
            "== PARTS - 2;",
            (r"arriv", r"fus"),
        ),
        (
            "arrivals are not set back",
            ("v14", "v21"),
            "if (threadIdx.x == 0) *tile_arrivals = 0;",
            "",
            (r"arriv", r"again", r"second (run|launch)"),
        ),
        on=_PAGED,
    ),
    *rows(
        "LSE",
        (
            "base 2",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = merged * 1.4427f;",
            (r"base.2",),
        ),
        ("the sum alone", ("flash_split.cu",), "lse[at] = merged;", "lse[at] = total;", (r"LSE",)),
        (
            "without the maximum",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = __logf(total);",
            (r"LSE.*maximum",),
        ),
        (
            "the maximum alone",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = top;",
            (r"LSE.*(maximum|split)",),
        ),
        (
            "rows before heads",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[(int64_t)query * gridDim.y + batch_head] = merged;",
            (r"places",),
        ),
        (
            "every second row",
            ("flash_split.cu",),
            "if (lane == 0) lse[at]",
            "if (lane == 0 && query % 2 == 0) lse[at]",
            (r"never written",),
        ),
        (
            "the first split's",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[at] = mine;",
            (r"LSE.*split",),
        ),
        (
            "of the CTA's first head",
            ("flash_split.cu",),
            "lse[at] = merged;",
            "lse[query] = merged;",
            (r"LSE.*(never written|head|places)", r"'lse'.*index leaves out.*a head"),
        ),
        on=_OWN,
    ),
)
