// Hopper's asynchronous instructions on the host: mbarrier, TMA and wgmma.
#pragma once

#pragma GCC visibility push(default)
namespace coh {

// ---- mbarrier (a 64-bit word in shared memory) ----
void mbarrier_init(void *mbarrier, int arrivals, Site site);
void mbarrier_init_fence();  // fence.mbarrier_init
void mbarrier_invalidate(void *mbarrier, Site site);
// mbarrier.arrive with `count`, after expecting `transaction_bytes` more (arrive.expect_tx if not
// 0). Returns the state: the parity of the phase in which it arrived.
uint64_t mbarrier_arrive(void *mbarrier, int count, int transaction_bytes, Site site);
// expect_tx; complete_tx if the number is negative.
void mbarrier_expect(void *mbarrier, int transaction_bytes, Site site);
// Whether the phase of `parity` has completed. May wait for it as long as other threads can run.
bool mbarrier_try_wait(void *mbarrier, int parity, Site site);
// cp.async.mbarrier.arrive: arrives (if `counts`) when this thread's copies have completed.
void mbarrier_arrive_after_copies(void *mbarrier, bool counts, Site site);

// ---- TMA ----
// `map` points to the 128-byte tensor map that the CPU backend's client encodes. The tile is
// written to shared memory at `destination` only when a thread waits for it.
void tma_load(void *destination, const void *map, void *mbarrier, int rank, const int *coordinates,
              Site site);
// .multicast::cluster, to the CTAs of the mask; cp.async.bulk to a CTA's shared memory; st.async.
void tma_load_multicast(void *destination, const void *map, void *mbarrier, int rank,
                        const int *coordinates, uint16_t ctas, Site site);
void bulk_load_multicast(void *destination, const void *source, uint32_t bytes, void *mbarrier,
                         uint16_t ctas, Site site);
void bulk_send(void *destination, const void *source, uint32_t bytes, void *mbarrier, Site site);
void store_async(void *destination, const void *value, uint32_t bytes, void *mbarrier, Site site);
// From shared to global memory. The source is read only when a bulk_wait requires it.
void tma_store(const void *map, const void *source, int rank, const int *coordinates, Site site);
// cp.async.bulk without a tensor map: `bytes` contiguous bytes, a multiple of 16.
void bulk_load(void *destination, const void *source, uint32_t bytes, void *mbarrier, Site site);
void bulk_store(void *destination, const void *source, uint32_t bytes, Site site);
void bulk_commit();
void bulk_wait(unsigned pending_groups);
// fence.proxy.async: orders this thread's ordinary shared stores before TMA and wgmma reads.
void proxy_fence();

// ---- wgmma: four warps; D is m64 x n in registers ----
// n: a multiple of 8 up to 256. `d` is this thread's n / 2 accumulators and must stay in place
// until wgmma_wait: the product is added there, not at issue. `a_registers` (4 words, copied at
// issue) or, when null, `a_descriptor` names A; descriptors use a swizzle of 32, 64 or 128 bytes.
// `transposed`: the operand is MN-major in shared memory. `accumulate`: adds to D, else overwrites
// it.
struct WgmmaOperands {
    const uint32_t *a_registers;
    uint64_t a_descriptor, b_descriptor;
    bool a_transposed, b_transposed;
    Element element;
    bool accumulate;
    const void *a_place = nullptr;  // address of the thread's registers of A, if known
};
// The lifetime of a local variable begins: its memory may be written again (check build).
void local_begins(const void *place, size_t bytes);
void wgmma(float *d, int n, const WgmmaOperands &operands, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(int pending_groups, Site site);

// setmaxnreg, by all four warps of a warpgroup: number of registers per thread from here on.
enum class RegisterChange { inc, dec };
void set_max_registers(int count, RegisterChange change, Site site);

}  // namespace coh
#pragma GCC visibility pop
