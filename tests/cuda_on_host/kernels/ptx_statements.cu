// PTX of a warp, of memory and of barriers: ok[i] counts the threads for which statement i was correct.
// One CTA of 64 threads.
#define CHECK(condition) atomicAdd(&ok[n++], (condition) ? 1 : 0)
#define FULL 0xffffffff

__device__ unsigned shared_address_of(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

// Waits by polling, and counts the polls.
__device__ int wait_and_count(unsigned barrier, unsigned parity) {
    int polls = 0, done = 0;
    while (!done) {
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            " selp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
        polls++;
    }
    return polls;
}

extern "C" __global__ void statements(int *ok, unsigned *data, unsigned *scratch) {
    __shared__ __align__(16) unsigned words[64 * 4];
    __shared__ __align__(16) unsigned copied[64];
    __shared__ __align__(8) unsigned long long barriers[2];
    const unsigned t = threadIdx.x, lane = t % 32;
    const unsigned at = shared_address_of(&words[t * 4]);
    int n = 0;
    unsigned r, s;
    unsigned long long wide;
    float f;

    // ---- special registers ----
    asm("mov.u32 %0, %%laneid;" : "=r"(r));
    CHECK(r == lane);
    asm("mov.u32 %0, %tid.x;" : "=r"(r));
    CHECK(r == t);
    asm("{ .reg .u32 a; mov.u32 a, %%ntid.x; mad.lo.u32 %0, a, %%nctaid.x, %%ctaid.y; }" : "=r"(r));
    CHECK(r == 64);
    asm("mov.u32 %0, %%lanemask_le;" : "=r"(r));
    CHECK(r == (lane == 31 ? FULL : (2u << lane) - 1));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(wide));
    CHECK(wide > 0);

    // ---- warp ----
    asm("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(r) : "r"(lane));
    CHECK(r == (lane ^ 1));
    asm("shfl.sync.idx.b32 %0, %1, 2, 0x181f, -1;" : "=r"(r) : "r"(lane));
    CHECK(r == (lane & 24) + 2);
    asm("shfl.sync.up.b32 %0, %1, 1, 0, 0xffffffff;" : "=r"(r) : "r"(lane));
    CHECK(r == (lane ? lane - 1 : 0));
    asm("{ .reg .pred p; .reg .b32 v; shfl.sync.down.b32 v|p, %1, 4, 0x1f, 0xffffffff;"
        " selp.b32 %0, v, 99, p; }" : "=r"(r) : "r"(lane));
    CHECK(r == (lane < 28 ? lane + 4 : 99));
    asm("{ .reg .pred p; setp.lt.u32 p, %1, 4; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
        : "=r"(r) : "r"(lane));
    CHECK(r == 15);
    asm("{ .reg .pred p, q; setp.lt.u32 p, %1, 4; vote.sync.any.pred q, p, 0xffffffff;"
        " vote.sync.all.pred p, p, 0xffffffff; not.pred p, p; and.pred q, q, p;"
        " selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"(lane));
    CHECK(r == 1);
    asm("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(lane));
    CHECK(r == 496);
    asm("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"((int)lane - 5));
    CHECK((int)r == -5);
    asm("redux.sync.xor.b32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(1u << lane));
    CHECK(r == FULL);
    asm("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(lane / 8));
    CHECK(r == 255u << lane / 8 * 8);
    asm("{ .reg .pred p; elect.sync %0|p, 0xffffffff; @p mov.u32 %0, 77; }" : "=r"(r));
    CHECK(r == (lane == 0 ? 77 : 0));
    asm("activemask.b32 %0;" : "=r"(r));
    CHECK(r == FULL);

    // ---- memory ----
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "r"(at), "r"(t), "r"(1), "r"(2), "r"(3) : "memory");
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+8];" : "=r"(r), "=r"(s) : "r"(at));
    CHECK(r == 2 && s == 3);
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(r) : "r"(at));
    CHECK(r == t);
    asm volatile("ld.shared.u8 %0, [%1 + 4];" : "=r"(r) : "r"(at));
    CHECK(r == 1);
    asm volatile("atom.shared.add.u32 %0, [%1+4], 5;" : "=r"(r) : "r"(at));
    CHECK(r == 1);
    asm volatile("red.shared::cta.max.s32 [%0+4], 50;" :: "r"(at) : "memory");
    asm volatile("ld.shared.u32 %0, [%1 + 4];" : "=r"(r) : "r"(at));
    CHECK(r == 50);
    asm volatile("cvta.shared.u64 %0, %1;" : "=l"(wide) : "l"((unsigned long long)at));
    CHECK(wide == (unsigned long long)&words[t * 4]);
    asm volatile("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }"
                 : "=r"(r) : "l"(&words[t * 4]));
    CHECK(r == at);
    asm("{ .reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "l"(&words[t]));
    CHECK(r == 1);
    asm("{ .reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "l"(data));
    CHECK(r == 0);
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, _, _, %1}, [%2];"
                 : "=r"(r), "=r"(s) : "l"(data + t * 4));
    CHECK(r == t * 4 && s == t * 4 + 3);
    asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
                 " ld.global.L2::cache_hint.u32 %0, [%1 + 4], policy; }" : "=r"(r) : "l"(data));
    CHECK(r == 1);
    asm volatile("st.global.wt.f32 [%0], %1;" :: "l"(scratch + t), "f"(0.5f + t) : "memory");
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(f) : "l"(scratch + t));
    CHECK(f == 0.5f + t);
    asm volatile("atom.global.add.f32 %0, [%1], 0f3F800000;" : "=f"(f) : "l"(scratch + t) : "memory");
    CHECK(f == 0.5f + t);
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(f) : "l"(scratch + t));
    CHECK(f == 1.5f + t);
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(scratch + 64 + t), "r"(0) : "memory");
    asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], 0, 9;" : "=r"(r) : "l"(scratch + 64 + t) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(scratch + 64 + t) : "memory");
    asm volatile("atom.global.exch.b32 %0, [%1], 4;" : "=r"(s) : "l"(scratch + 64 + t) : "memory");
    CHECK(r == 0 && s == 10);
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(scratch + 64 + t) : "memory");
    CHECK(r == 4);
    asm volatile("prefetch.global.L2 [%0]; prefetchu.L1 [%0]; nanosleep.u32 20; fence.acq_rel.gpu;"
                 " membar.gl; fence.proxy.async.shared::cta; griddepcontrol.wait;" :: "l"(data) : "memory");
    asm volatile("{ .reg .b128 q; ld.global.b128 q, [%1]; mov.b128 {_, %0}, q; }" : "=l"(wide) : "l"(data));
    CHECK(wide == (3ull << 32 | 2));

    // ---- asynchronous copies ----
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"(shared_address_of(&copied[t])), "l"(data + t) : "memory");
    asm volatile("cp.async.commit_group;\n cp.async.wait_group %0;" :: "n"(0) : "memory");
    CHECK(copied[t] == t);
    const unsigned first = shared_address_of(&barriers[0]), second = first + 8;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(first), "r"(64) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(second) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("bar.sync 0;" ::: "memory");
    asm volatile("{ .reg .b64 state; .reg .pred p;\n mbarrier.arrive.shared.b64 state, [%1];\n"
                 "again: mbarrier.try_wait.shared.b64 p, [%1], state;\n @!p bra again;\n"
                 " selp.u32 %0, 1, 0, p; }" : "=r"(r) : "r"(first) : "memory");
    CHECK(r == 1);
    // A thread polls for a condition that it fulfils itself later.
    if (t == 0) {
        int done = 0, turns = 0;
        while (!done) {
            asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0;"
                         " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(second) : "memory");
            if (++turns == 3) {
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(second) : "memory");
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                    :: "r"(shared_address_of(copied)), "l"(data + 64), "r"(second) : "memory");
            }
        }
        r = turns >= 3;
    }
    CHECK(r == 1);
    CHECK(wait_and_count(second, 0) >= 1);
    CHECK(copied[t] == 64 + t);
    __syncthreads();
    copied[t] = 1000 + t;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("barrier.sync 1, 64;" ::: "memory");
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                     :: "l"(scratch + 128), "r"(shared_address_of(copied)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
    CHECK(scratch[128 + t] == 1000 + t);

    // ---- fragments: what ldmatrix loads, stmatrix stores ----
    unsigned fragment[4];
    const unsigned row = shared_address_of(&words[lane * 4]);
    __syncthreads();
    for (int i = 0; i < 4; i++) words[t * 4 + i] = t * 8 + 2 * i + ((t * 8 + 2 * i + 1) << 16);
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row) : "memory");
    // Matrix m holds 64 m + 8 row + column; transposed, this lane has column lane / 4.
    CHECK(fragment[2] % 65536 == 128 + 8 * (2 * (lane % 4)) + lane / 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(row) : "memory");
    CHECK(r >> 16 == 8 * (lane / 4) + 2 * (lane % 4) + 1);
    __syncthreads();
    if (t < 32) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     :: "r"(row), "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]) : "memory");
    }
    __syncthreads();
    CHECK(words[lane * 4 + 1] % 65536 == lane * 8 + 2);
    if (t == 0) ok[127] = n;
}

// D = A @ B + C of one warp: registers a[lane][4], b[lane][2], c[lane][4] in, d[lane][4] out.
extern "C" __global__ void fragments(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d) {
    const int lane = threadIdx.x;
    a += lane * 4, b += lane * 2, c += lane * 4, d += lane * 4;
    asm volatile(MMA : D : A, B, C);
}
