// What a kernel library may call in the runtime: threads, barriers, warp collectives, copies.
#pragma once

// Kernel libraries are compiled with hidden visibility; these live in the shared runtime library.
#pragma GCC visibility push(default)
namespace coh {

// A line of kernel source. As a defaulted last parameter it is the caller's line.
struct Site {
    const char *file;
    int line;

    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return Site{file, line};
    }
    bool operator==(const Site &other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
    bool operator!=(const Site &other) const { return !(*this == other); }
};

// What the running CUDA thread knows about itself.
struct Thread {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
    uint32_t linear;  // position in its CTA
    uint32_t lane, warp;
    char *static_smem;   // static __shared__ arrays of this CTA
    char *dynamic_smem;  // extern __shared__ of this CTA
    uint32_t dynamic_smem_bytes;
};
// One runtime library holds this variable for all kernel libraries: with one each, the room for
// initial-exec thread-local storage would run out after about 50 kernels.
extern __thread Thread *self __attribute__((tls_model("initial-exec")));

// Ends the launch with an error at the running thread. Does not return.
[[noreturn]] void fail(const char *kind, Site site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// ---- barriers ----
// bar.sync: waits until `threads` threads have arrived at barrier `id` (0..15); 0 means every
// thread of the CTA that has not returned. __syncthreads() is barrier_sync(0, 0).
void barrier_sync(int id, int threads, Site site);
// bar.arrive: counts as an arrival and does not wait.
void barrier_arrive(int id, int threads, Site site);
enum class Reduction { count, all, any };
// __syncthreads_count/and/or.
int barrier_reduce(int predicate, Reduction reduction, Site site);

// ---- warp and warpgroup collectives ----
// Every lane of `mask` leaves a pointer to its operand; the last one to come runs `operation` for
// all of them. Lanes that meet with different masks, operations or lines are an error.
typedef void (*Collective)(void **operand_of_lane, uint32_t mask);
void warp_collective(uint32_t mask, Collective operation, void *operand, Site site);
// The same for `warps` warps from warp `first_warp` on; the operands are indexed by thread.
void group_collective(int first_warp, int warps, Collective operation, void *operand, Site site);
void warp_sync(uint32_t mask, Site site);
// v of lane `source`; 64 bits wide. A source outside the mask gives NaN bits.
uint64_t shuffle(uint32_t mask, uint64_t v, int source, Site site);
uint32_t ballot(uint32_t mask, int predicate, Site site);
uint32_t live_lanes();  // __activemask(), as far as lanes that have not returned
void yield();           // lets the other threads of the CTA run (__nanosleep)
void thread_fence();    // __threadfence()

// ---- shared memory ----
// The 32-bit shared-window address PTX uses: dynamic memory first, from 0.
uint32_t shared_address(const void *pointer);
void *shared_pointer(uint32_t address);

// ---- cp.async ----
// Copies `bytes` (4, 8 or 16) to shared memory: `source_bytes` from `source`, then zeros. The copy
// is really delayed until cp_async_wait, so a missing wait shows.
void cp_async(void *destination, const void *source, unsigned bytes, unsigned source_bytes,
              Site site);
void cp_async_commit();
void cp_async_wait(unsigned pending_groups);  // waits until at most that many groups are pending

// ---- matrix instructions, executed by a full warp ----
enum class Element { f16, bf16 };
// ldmatrix .x1/.x2/.x4: `row` is this lane's 16-byte row, `fragment` has one word per matrix.
void ldmatrix(uint32_t *fragment, int matrices, bool transposed, const void *row, Site site);
// mma.sync.m16n8k16 with FP32 accumulators: d[4], a[4], b[2], c[4]; d may be c.
void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b, const float *c, Element element,
                  Site site);

// ---- atomics (here, so that the check build sees them as atomics and not as plain accesses) ----
enum class AtomicOp { add, exchange, min_signed, max_signed, min_unsigned, max_unsigned, bit_and,
                      bit_or };
uint32_t atomic_32(AtomicOp op, void *address, uint32_t value, Site site);
uint64_t atomic_add_64(void *address, uint64_t value, Site site);
float atomic_add_float(float *address, float value, Site site);
uint32_t atomic_cas_32(void *address, uint32_t expected, uint32_t desired, Site site);
uint64_t atomic_cas_64(void *address, uint64_t expected, uint64_t desired, Site site);

// ---- one kernel library ----
constexpr int MAX_SHARED_ARRAYS = 128;
struct SharedArray {
    uint32_t offset, size;  // bytes, in the static shared window
    const char *name;
};
struct Module {
    uint32_t end;  // bytes of the static window in use
    int count;
    uint8_t *valid;  // 1 for every byte that belongs to an array
    SharedArray arrays[MAX_SHARED_ARRAYS];
};
// Called while the library is loaded, once per static __shared__ array.
uint32_t allocate_shared(Module *module, size_t bytes, size_t alignment, const char *name);

}  // namespace coh
#pragma GCC visibility pop
