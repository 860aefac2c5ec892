"""Wrong places: offsets, splits, fragments, descriptors, registers, stores, pages."""

from __future__ import annotations

from engine.attention.problem import Problem
from planted_bugs.unseen import Unseen, rows

_LONGER_KV = (Problem(1, 2, 77, 64, seqlen_kv=200),)
_GQA_CAUSAL = (Problem(1, 4, 40, 64, causal=True, num_heads_kv=2),)
_MANY_KEYS = (Problem(2, 4, 3, 64, num_heads_kv=2, seqlen_kv=700),)
_WIDE = (Problem(1, 2, 113, 128),)
_PIECES = (Problem(1, 3, 200, 64),)
_CLUSTER = {"cluster_size": 2}
_LEFT = (r"leav(es|ing) out", r"left out", r"never visited", r"only the first")
_DESCRIPTOR = (r"descriptor",)
_FRAGMENT = (r"fragment", r"operand", r"8 . 8")

PLACES: tuple[Unseen, ...] = (
    # ---- fusion of splits ----
    *rows(
        "fusion",
        (
            "l of a split without its weight",
            ("v05",),
            "l += weight * l_partial[partial_row];",
            "l += l_partial[partial_row];",
            (r"fusion", r"weight", r"row sum"),
        ),
        (
            "the last split is not fused",
            ("v06",),
            "for (int s = 0; s < NUM_SPLITS; s++) {",
            "for (int s = 0; s < NUM_SPLITS - 1; s++) {",
            (*_LEFT, r"split", r"fusion"),
        ),
        (
            "weights upside down",
            ("v05",),
            "fast_exp2((m_split - m) * scale_log2)",
            "fast_exp2((m - m_split) * scale_log2)",
            (r"fusion", r"weight"),
        ),
        (
            "O of the first split for all",
            ("v06",),
            "const float* o_row = o_partial + partial_row * HEAD_DIM;",
            "const float* o_row = o_partial + tile_row * HEAD_DIM;",
            (r"fusion", r"split", r"partial"),
        ),
        (
            "arrivals are not set back",
            ("v06",),
            "if (threadIdx.x == 0) *tile_arrivals = 0;",
            "",
            (r"arriv", r"again", r"second (run|launch)"),
        ),
        (
            "an arrival that orders nothing",
            ("v06",),
            "arrive_at_counter(tile_arrivals)",
            "atomicAdd(tile_arrivals, 1)",
            (r"__threadfence", r"release", r"acquire"),
        ),
        (
            "an arrival that not all threads wait for",
            ("v06",),
            "    __syncthreads();\n    int* tile_arrivals",
            "    int* tile_arrivals",
            (r"__syncthreads", r"arriv"),
        ),
        (
            "the first to come fuses",
            ("v06",),
            "== NUM_SPLITS - 1;",
            "== 0;",
            (r"arriv", r"fus"),
        ),
    ),
    *rows(
        "fusion",
        (
            "l of a part without its weight",
            ("v21",),
            "l += weight * l_partial[row_of_part];",
            "l += l_partial[row_of_part];",
            (r"fusion", r"weight", r"row sum"),
        ),
        (
            "the first part is not fused",
            ("v14",),
            "        for (int p = 0; p < PARTS; p++) {\n            const size_t row_of_part",
            "        for (int p = 1; p < PARTS; p++) {\n            const size_t row_of_part",
            (*_LEFT, r"split", r"fusion"),
        ),
        (
            "O of a part twice as heavy for odd columns",
            ("v14",),
            "share_rmem[j].y += weight * o.y;\n            }\n        }\n    }\n    if (!has",
            "share_rmem[j].y += 2 * weight * o.y;\n            }\n        }\n    }\n    if (!has",
            (r"column",),
        ),
        on=_MANY_KEYS,
    ),
    *rows(
        "fusion",
        (
            "maxima of the cluster are not taken",
            ("v21",),
            "            m = fmaxf(m, m_of[r]);\n",
            "            m = m_of[r];\n",
            (r"maximum", r"cluster"),
        ),
        (
            "l of the own CTA alone",
            ("v14", "v21"),
            "l += weight * load_of_cta(l_smem + tile_row, r);",
            "l += weight * l_smem[tile_row];",
            (r"row sum", r"cluster", r"fusion"),
        ),
        (
            "every CTA takes the first share of the columns",
            ("v21",),
            "const float* share = o_row + rank * (HEAD_DIM / CLUSTER_SIZE);",
            "const float* share = o_row + 0 * rank * (HEAD_DIM / CLUSTER_SIZE);",
            (r"column", r"cluster"),
        ),
        config=_CLUSTER,
        on=_MANY_KEYS,
    ),
    *rows(
        "fusion",
        (
            "the upper row's weight for both",
            ("v13",),
            "acc_rmem[t][tile][2] += weight[1] * o.z;",
            "acc_rmem[t][tile][2] += weight[0] * o.z;",
            (r"fusion", r"weight", r"column"),
        ),
        (
            "the first piece is counted twice",
            ("v13",),
            "2 * (size_t)cta + (cta == first_cta);\n#pragma unroll\n"
            "                    for (int t = 0; t < ROW_TILES; t++) {",
            "2 * (size_t)(cta > first_cta + 1 ? cta : first_cta) + 1;\n#pragma unroll\n"
            "                    for (int t = 0; t < ROW_TILES; t++) {",
            (r"twice", r"piece", r"fusion", r"split"),
        ),
        config={"block_n": 32},
        on=_PIECES,
    ),
    # ---- addressing ----
    *rows(
        "addressing",
        (
            "K and V where Q begins",
            ("v05",),
            "head_index * seqlen_kv * HEAD_DIM",
            "head_index * seqlen * HEAD_DIM",
            (r"stride", r"K.* of a head", r"begins?"),
        ),
        on=_LONGER_KV,
    ),
    *rows(
        "addressing",
        (
            "K/V heads in turn",
            ("v08",),
            "blockIdx.y / group;",
            "blockIdx.y % num_heads_kv;",
            (r"head",),
        ),
        (
            "K/V heads in turn",
            ("v17",),
            "head / (num_heads / num_heads_kv);",
            "head % num_heads_kv;",
            (r"head",),
        ),
        (
            "the first K/V head for all",
            ("v19",),
            "now.head / (num_heads / num_heads_kv);",
            "now.head / num_heads;",
            (r"head",),
        ),
        (
            "the head behind",
            ("v22",),
            "(head + 0.5f) * kv_heads_per_head",
            "(head + 1.5f) * kv_heads_per_head",
            (r"head", r"out of bounds"),
        ),
        shapes="gqa",
    ),
    *rows(
        "addressing",
        (
            "K of batch 0 for all",
            ("v07",),
            "(size_t)blockIdx.z * num_heads_kv",
            "(size_t)0 * num_heads_kv",
            (r"batch", r"sequence", r"head"),
        ),
        on=(Problem(2, 2, 77, 64),),
    ),
    *rows(
        "addressing",
        (
            "a row behind the last is read",
            ("v02",),
            "if (first_row + row < length) {",
            "if (first_row + row <= length) {",
            (r"out of bounds", r"behind the (last|end)", r"past"),
        ),
        (
            "V's rows without their padding",
            ("v07",),
            "v_smem + n * ROW_STRIDE + d, ROW_STRIDE);",
            "v_smem + n * ROW_STRIDE + d, HEAD_DIM);",
            (r"stride", r"V"),
        ),
        (
            "K's rows without their padding",
            ("v07",),
            "k_smem + n * ROW_STRIDE + d, ROW_STRIDE);",
            "k_smem + n * ROW_STRIDE + d, HEAD_DIM);",
            (r"stride", r"K"),
        ),
        (
            "K's rows without their padding",
            ("v05",),
            "pair_at(k_smem + n * ROW_STRIDE, d);",
            "pair_at(k_smem + n * HEAD_DIM, d);",
            (r"stride", r"K"),
        ),
        (
            "stored from the tile's first row on",
            ("v08",),
            "out + q_head + (size_t)query * HEAD_DIM;",
            "out + q_head + (size_t)(query - m0) * HEAD_DIM;",
            (r"[Nn]ever written", r"row", r"several CTAs|two CTAs|race"),
        ),
        (
            "the causal order of tiles in both cases",
            ("v09",),
            "IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x",
            "IS_CAUSAL ? blockIdx.x : gridDim.x - blockIdx.x",
            (r"[Nn]ever written", r"query (row|tile)"),
        ),
        (
            "columns of the right half of Q",
            ("v08",),
            "step * 16 + i / 2 * 8 + pair;",
            "step * 16 + i / 2 * 4 + pair;",
            (r"column", r"fragment", r"operand"),
        ),
    ),
    *rows(
        "addressing",
        (
            "queries before heads",
            ("v14",),
            "return head * seqlen + row / group;",
            "return head * seqlen + row % seqlen;",
            (r"row", r"head", r"query"),
        ),
        on=_GQA_CAUSAL,
    ),
    # ---- fragments and swizzles ----
    *rows(
        "fragments",
        (
            "matrices of K in another order",
            ("v08", "v14", "v21"),
            "mma_m16n8k16(s_rmem[2 * key_step], q_rmem[step], k_rmem[0], k_rmem[1]);",
            "mma_m16n8k16(s_rmem[2 * key_step], q_rmem[step], k_rmem[0], k_rmem[2]);",
            _FRAGMENT,
        ),
        (
            "V is not transposed",
            ("v10",),
            "ldmatrix_x4_transposed(v_rmem",
            "ldmatrix_x4(v_rmem",
            (r"transpos", *_FRAGMENT),
        ),
        (
            "K is transposed",
            ("v10",),
            "ldmatrix_x4(k_rmem",
            "ldmatrix_x4_transposed(k_rmem",
            (r"transpos", *_FRAGMENT),
        ),
        (
            "rows and columns of Q's quarters exchanged",
            ("v08",),
            "query0 + i % 2 * 8;\n            const int d = step * 16 + i / 2 * 8",
            "query0 + i / 2 * 8;\n            const int d = step * 16 + i % 2 * 8",
            _FRAGMENT,
        ),
        (
            "neighbouring keys exchanged",
            ("v22",),
            "pack(left, right)",
            "pack(right, left)",
            (r"neighbour", r"exchang", r"order", *_FRAGMENT),
        ),
        (
            "neighbouring keys exchanged",
            ("v19",),
            "pack(s_rmem[i], s_rmem[i + 1])",
            "pack(s_rmem[i + 1], s_rmem[i])",
            (r"neighbour", r"exchang", r"order", *_FRAGMENT),
        ),
        (
            "neighbouring columns of O exchanged",
            ("v08",),
            "to_element2(acc_rmem[tile][2 * r] * inv_l, acc_rmem[tile][2 * r + 1] * inv_l)",
            "to_element2(acc_rmem[tile][2 * r + 1] * inv_l, acc_rmem[tile][2 * r] * inv_l)",
            (r"column",),
        ),
        (
            "the left column twice",
            ("v21",),
            "to_element2(share_rmem[j].x * inv_l, share_rmem[j].y * inv_l)",
            "to_element2(share_rmem[j].x * inv_l, share_rmem[j].x * inv_l)",
            (r"column",),
        ),
        (
            "O is stored without the swizzle",
            ("v17",),
            "column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8)",
            "column % COLUMNS / 8 ^ 0 * row",
            (r"swizzle", r"column"),
        ),
        (
            "V is read eight rows lower",
            ("v09",),
            "key_step * 16 + lane % 16;",
            "key_step * 16 + (lane + 8) % 16;",
            _FRAGMENT,
        ),
        (
            "second steps of K before the first",
            ("v12",),
            "mma_m16n8k16(s_rmem[t][tile], first[block][t], keys.x, keys.y);",
            "mma_m16n8k16(s_rmem[t][tile], first[block][t], keys.z, keys.y);",
            _FRAGMENT,
        ),
        (
            "rows of O stored by matrices of eight",
            ("v22",),
            "warp % 4 * 16 + lane % 16;",
            "warp % 4 * 16 + (lane + 8) % 16;",
            (r"row", r"fragment"),
        ),
    ),
    # ---- descriptors and boxes ----
    *rows(
        "descriptors",
        (
            "groups of rows four times as near",
            ("v22",),
            "GROUP << 32",
            "GROUP << 30",
            _DESCRIPTOR,
        ),
        (
            "no swizzle in the descriptor",
            ("v15",),
            "| LAYOUT << 62",
            "",
            (*_DESCRIPTOR, r"swizzle"),
        ),
        header="hopper.cuh",
    ),
    *rows(
        "descriptors",
        (
            "the second group multiplies the first one's rows",
            ("v18",),
            "shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES;",
            "shared_address(q_smem) + 0 * group * GROUP_ROWS * ROW_BYTES;",
            (*_DESCRIPTOR, r"row", r"group"),
        ),
        (
            "the second group multiplies the first one's rows",
            ("v19", "v20"),
            "shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES, 16",
            "shared_address(q_smem) + 0 * group * GROUP_ROWS * ROW_BYTES, 16",
            (*_DESCRIPTOR, r"row", r"group"),
        ),
        (
            "V's address is not in units of 16 bytes",
            ("v22",),
            "(step * 16 * ROW_BYTES >> 4)",
            "(step * 16 * ROW_BYTES)",
            (*_DESCRIPTOR, r"address", r"V"),
        ),
        (
            "K's columns one step too far",
            ("v22",),
            "k_first + half * (HALF_BYTES >> 4) + columns_at<HALF_KEYS>(step);",
            "k_first + half * (HALF_BYTES >> 4) + columns_at<HALF_KEYS>((step + 1) % DIM_STEPS);",
            (*_DESCRIPTOR, r"column"),
        ),
    ),
    *rows(
        "boxes",
        (
            "Q's second box at the second group's rows",
            ("v17",),
            "tma_load(q_smem + box * BLOCK_M * ROW_BYTES, &q_map",
            "tma_load(q_smem + box * GROUP_ROWS * ROW_BYTES, &q_map",
            (r"box", r"column"),
        ),
        (
            "every box of O is the first",
            ("v19",),
            "place + box * BLOCK_M * ROW_BYTES, box * COLUMNS, last.m0",
            "place + 0 * BLOCK_M * ROW_BYTES, box * COLUMNS, last.m0",
            (r"box", r"column"),
        ),
        on=_WIDE,
    ),
    # ---- registers of a warp ----
    *rows(
        "registers",
        (
            "the producer keeps its registers",
            ("v17",),
            "        fewer_registers<PRODUCER_REGISTERS>();\n",
            "",
            (r"setmaxnreg",),
        ),
        (
            "two warps of a group take more",
            ("v19",),
            "    more_registers<CONSUMER_REGISTERS>();",
            "    if (threadIdx.x % WARPGROUP < 64) more_registers<CONSUMER_REGISTERS>();",
            (r"setmaxnreg",),
        ),
    ),
    # ---- stores ----
    *rows(
        "store",
        (
            "the last row is not stored",
            ("v02",),
            "    if (query < seqlen) {\n",
            "    if (query < seqlen - 1) {\n",
            (r"[Nn]ever written", r"last"),
        ),
        (
            "every group stores the first one's rows",
            ("v16",),
            "(box * BLOCK_M + group * GROUP_ROWS) * ROW_BYTES",
            "(box * BLOCK_M + 0 * group * GROUP_ROWS) * ROW_BYTES",
            (r"row", r"group"),
        ),
        (
            "rows behind the last are stored",
            ("v08",),
            "        if (query >= seqlen) continue;\n",
            "",
            (r"out of bounds", r"another (row|head)", r"behind the (last|end)"),
        ),
        (
            "half of a warp's rows are not stored",
            ("v22",),
            "m0 + warp * 16, head, batch);",
            "m0 + warp * 8, head, batch);",
            (r"[Nn]ever written", r"row"),
        ),
        (
            "stores of 16 bytes a half row apart",
            ("v13",),
            "(size_t)query * HEAD_DIM + d) =\n",
            "(size_t)query * HEAD_DIM + d / 2 / VECTOR * VECTOR) =\n",
            (r"[Nn]ever written", r"column"),
        ),
    ),
    # ---- pages ----
    *rows(
        "pages",
        (
            "the table of the split",
            ("v21",),
            "block_table + (size_t)blockIdx.z * (",
            "block_table + (size_t)blockIdx.x * (",
            (r"page", r"block_table"),
        ),
        (
            "the first page for all tiles",
            ("v21",),
            "pages[tile / TILES_PER_PAGE] : 0",
            "pages[0] : 0",
            (r"page", r"block_table"),
        ),
        (
            "the first head of every page",
            ("v21",),
            "num_heads_kv + kv_head_index) * PAGE_SIZE",
            "num_heads_kv + 0 * kv_head_index) * PAGE_SIZE",
            (r"page", r"head"),
        ),
        (
            "the page of the tile before",
            ("v21",),
            "        next_page = page_of(tile + STAGES * NUM_WARPS);\n",
            "",
            (r"page", r"block_table"),
        ),
        (
            "pages without their heads",
            ("v21",),
            "((size_t)page * num_heads_kv + kv_head_index)",
            "((size_t)page + kv_head_index)",
            (r"page", r"head"),
        ),
        on=_MANY_KEYS,
    ),
)
