// Tensor cores: 4 warps of 16 query rows each, cp.async double buffer, ldmatrix, mma.m16n8k16,
// softmax in registers. D = 64. Grid (num_heads, batch, ceil(seqlen / 64)), 128 threads.
#include "ptx.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 64, HEAD_DIM = 64, NUM_THREADS = 128;
constexpr int LD = HEAD_DIM + 8;  // padded row: conflict-free for ldmatrix
constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ void load_tile(element *tile_smem, const element *head, int first,
                                          int seqlen) {
    for (int i = threadIdx.x; i < 64 * HEAD_DIM / 8; i += NUM_THREADS) {
        const int row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
        const bool valid = first + row < seqlen;
        const int source_row = valid ? first + row : 0;
        cp_async_16(tile_smem + row * LD + column, head + (size_t)source_row * HEAD_DIM + column,
                    valid);
    }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
fa_mma(const element *__restrict__ q, const element *__restrict__ k, const element *__restrict__ v,
       element *__restrict__ out, float *__restrict__ lse, int num_heads, int seqlen, float scale,
       int causal) {
    extern __shared__ __align__(128) unsigned char smem[];
    element *q_smem = reinterpret_cast<element *>(smem);
    element *k_smem = q_smem + BLOCK_M * LD, *v_smem = k_smem + 2 * BLOCK_N * LD;  // two stages
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const int m0 = blockIdx.z * BLOCK_M;
    const size_t head_index = (size_t)blockIdx.y * num_heads + blockIdx.x;
    const size_t head = head_index * seqlen * HEAD_DIM;
    const int kv_end = causal ? min(seqlen, m0 + BLOCK_M) : seqlen;
    const int tiles = (kv_end + BLOCK_N - 1) / BLOCK_N;
    load_tile(q_smem, q + head, m0, seqlen);
    load_tile(k_smem, k + head, 0, seqlen);
    load_tile(v_smem, v + head, 0, seqlen);
    cp_async_commit();

    uint32_t q_frag[HEAD_DIM / 16][4];
    float o[HEAD_DIM / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    const float scale_log2 = scale * 1.4426950408889634f;
    for (int tile = 0; tile < tiles; tile++) {
        const int n0 = tile * BLOCK_N, stage = tile & 1, next = (stage ^ 1) * BLOCK_N * LD;
        if (tile + 1 < tiles) {
            load_tile(k_smem + next, k + head, n0 + BLOCK_N, seqlen);
            load_tile(v_smem + next, v + head, n0 + BLOCK_N, seqlen);
        }
        cp_async_commit();
        cp_async_wait<1>();  // WAIT: this stage has landed
        __syncthreads();     // SYNC1: for every thread
        const element *k_tile = k_smem + stage * BLOCK_N * LD;
        const element *v_tile = v_smem + stage * BLOCK_N * LD;
        for (int kk = 0; kk < HEAD_DIM / 16 && tile == 0; kk++) {
            ldmatrix_x4(q_frag[kk],
                        q_smem + (warp * 16 + lane % 16) * LD + kk * 16 + lane / 16 * 8);
        }
        float s[BLOCK_N / 8][4] = {};
        for (int kk = 0; kk < HEAD_DIM / 16; kk++) {
            for (int nb = 0; nb < BLOCK_N / 16; nb++) {
                uint32_t k_frag[4];
                ldmatrix_x4(k_frag, k_tile + (nb * 16 + lane % 8 + lane / 16 * 8) * LD + kk * 16 +
                                        lane / 8 % 2 * 8);
                mma_16816(s[2 * nb], q_frag[kk], k_frag[0], k_frag[1]);
                mma_16816(s[2 * nb + 1], q_frag[kk], k_frag[2], k_frag[3]);
            }
        }
        float m_new[2] = {m[0], m[1]}, m_finite[2], correction[2], sum[2] = {};
        for (int i = 0; i < BLOCK_N / 8; i++) {
            for (int j = 0; j < 4; j++) {
                const int key = n0 + i * 8 + 2 * pair + j % 2;
                const int query = m0 + warp * 16 + group + j / 2 * 8;
                if (key >= seqlen || (causal && key > query)) s[i][j] = -INFINITY;
                m_new[j / 2] = fmaxf(m_new[j / 2], s[i][j]);
            }
        }
        for (int r = 0; r < 2; r++) {
            m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(FULL_WARP, m_new[r], 1));
            m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(FULL_WARP, m_new[r], 2));
            m_finite[r] = m_new[r] == -INFINITY ? 0.f : m_new[r];
            correction[r] = exp2f((m[r] - m_finite[r]) * scale_log2);
            m[r] = m_new[r];
        }
        for (int i = 0; i < BLOCK_N / 8; i++) {
            for (int j = 0; j < 4; j++) {
                s[i][j] = exp2f((s[i][j] - m_finite[j / 2]) * scale_log2);
                sum[j / 2] += s[i][j];
            }
        }
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 1);
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 2);
            l[r] = l[r] * correction[r] + sum[r];
        }
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            for (int j = 0; j < 4; j++) o[i][j] *= correction[j / 2];
        }
        for (int kk = 0; kk < BLOCK_N / 16; kk++) {
            uint32_t p_frag[4];
            for (int j = 0; j < 4; j++) {
                const float *p = &s[2 * kk + j / 2][j % 2 * 2];
                p_frag[j] = pack2(p[0], p[1]);
            }
            for (int db = 0; db < HEAD_DIM / 16; db++) {
                uint32_t v_frag[4];
                ldmatrix_x4_trans(v_frag,
                                  v_tile + (kk * 16 + lane % 16) * LD + db * 16 + lane / 16 * 8);
                mma_16816(o[2 * db], p_frag, v_frag[0], v_frag[1]);
                mma_16816(o[2 * db + 1], p_frag, v_frag[2], v_frag[3]);
            }
        }
        __syncthreads();  // SYNC2: the stage is free again
    }
    for (int r = 0; r < 2; r++) {
        const int row = m0 + warp * 16 + group + r * 8;
        if (row >= seqlen) continue;
        const float inverse = 1.f / l[r];
        element *out_row = out + head + (size_t)row * HEAD_DIM;
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            *reinterpret_cast<uint32_t *>(out_row + i * 8 + 2 * pair) =
                pack2(o[i][2 * r] * inverse, o[i][2 * r + 1] * inverse);
        }
        if (pair == 0) lse[head_index * seqlen + row] = m[r] * scale + logf(l[r]);
    }
}
