// Functions of the runtime that a kernel library may call: threads, barriers, collectives, copies.
#pragma once

// Kernel libraries are compiled with hidden visibility; these live in the shared runtime library.
#pragma GCC visibility push(default)
namespace coh {

// A line of kernel source. As a default argument it is the caller's line.
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

// Indices and memory of the running CUDA thread.
struct Thread {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
    dim3 cluster_dim;  // 1, 1, 1 if the kernel has no clusters
    uint32_t cluster_rank, cluster_size;
    uint32_t linear;  // position in its CTA
    uint32_t lane, warp;
    char *static_smem;   // static __shared__ arrays of this CTA
    char *dynamic_smem;  // extern __shared__ of this CTA
    uint32_t dynamic_smem_bytes;
    uint32_t finite_locals;  // check build: host_checks.h
};
// Defined once, in the runtime library: with one variable per kernel library, initial-exec
// thread-local storage would be exhausted after about 50 kernels.
extern __thread Thread *self __attribute__((tls_model("initial-exec")));

// Ends the launch with an error of the running thread. Does not return.
[[noreturn]] void fail(const char *kind, Site site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Semantics and scope of a fence, an atomic or a cluster barrier. .sc is treated as acq_rel,
// .cluster and .sys as gpu.
enum class Order : uint8_t { relaxed, acquire, release, acq_rel };
enum class Scope : uint8_t { cta, gpu };

// ---- barriers ----
// bar.sync: waits until `threads` threads have arrived at barrier `id` (0..15); 0 means every
// thread of the CTA that has not returned. __syncthreads() is barrier_sync(0, 0).
void barrier_sync(int id, int threads, Site site);
// bar.arrive: arrives without waiting.
void barrier_arrive(int id, int threads, Site site);
// this_grid().sync(): waits for all threads of all CTAs; a module that calls it runs all CTAs
// concurrently.
void grid_sync(Site site);
// barrier.cluster: for all threads of all CTAs of the cluster. `order` is release or relaxed.
void cluster_arrive(Order order, Site site);
void cluster_wait(Site site);
enum class Reduction { count, all, any };
// __syncthreads_count/and/or.
int barrier_reduce(int predicate, Reduction reduction, Site site);

// ---- warp and warpgroup collectives ----
// Every lane of `mask` stores a pointer to its operand; the last one to arrive runs `operation` for
// all of them. Different masks or operations of these lanes are an error. The lanes may call from
// different lines, such as both branches of an `if`, unless the instruction is `.aligned`.
typedef void (*Collective)(void **operand_of_lane, uint32_t mask);
enum class Alignment { any_line, same_line };
void warp_collective(uint32_t mask, Collective operation, void *operand, Site site,
                     Alignment alignment = Alignment::any_line);
// The same for `warps` warps starting at `first_warp`, which must call from one line; the operands
// are indexed by thread.
void group_collective(int first_warp, int warps, Collective operation, void *operand, Site site);
void warp_sync(uint32_t mask, Site site);
// The 64-bit value v of lane `source`; NaN bits if the source is not in the mask. `mode` is the
// kind of shuffle, which must be the same for all lanes.
enum class Shuffle { up, down, bfly, idx };
uint64_t shuffle(Shuffle mode, uint32_t mask, uint64_t v, int source, Site site);
uint32_t ballot(uint32_t mask, int predicate, Site site);
// Writes `values[lane]` of every participating lane; returns their mask.
uint32_t gather(uint32_t mask, uint64_t v, uint64_t *values, Site site);
uint32_t active_lanes(Site site);  // __activemask(): the lanes of the warp that are here together
void yield();           // lets the other threads of the CTA run (__nanosleep)
void thread_fence(Scope scope = Scope::gpu, Order order = Order::acq_rel);  // __threadfence()

// ---- shared memory ----
// PTX's 32-bit shared-window address: dynamic memory first, from 0.
constexpr size_t SHARED_WINDOW_BYTES = 512 << 10;
uint32_t shared_address(const void *pointer, Site site = Site{});
void *shared_pointer(uint64_t address, Site site = Site{});
// The same for shared::cluster, which contains the windows of all CTAs of the cluster.
void *cluster_memory(uint64_t address, Site site = Site{});
bool is_in_cluster_memory(const void *pointer);
// mapa: the address in the CTA of rank `rank` that corresponds to `pointer`, of any CTA.
void *cluster_pointer(const void *pointer, uint32_t rank, Site site);
uint32_t cluster_address(uint64_t address, uint32_t rank, Site site);
uint32_t cluster_rank_of(const void *pointer, Site site);

// ---- cp.async ----
// Copies `bytes` (4, 8 or 16) to shared memory: `source_bytes` from `source`, then zeros. The copy
// is delayed until cp_async_wait, so that a missing wait has an effect.
void cp_async(void *destination, const void *source, unsigned bytes, unsigned source_bytes,
              Site site);
void cp_async_commit();
void cp_async_wait(unsigned pending_groups);  // waits until at most that many groups are pending

// ---- matrix instructions, executed by a full warp ----
enum class Element { f16, bf16, tf32, e4m3, e5m2, s8, u8, f32, s32 };
// ldmatrix .x1/.x2/.x4: `row` is this lane's 16-byte row, `fragment` has one word per matrix.
void ldmatrix(uint32_t *fragment, int matrices, bool transposed, const void *row, Site site);
// stmatrix: the inverse of ldmatrix.
void stmatrix(void *row, int matrices, bool transposed, const uint32_t *fragment, Site site);
// mma.sync.m16n8k`k`: D = A @ B + C. A row is 32 bytes at most: `a` has 2 or 4 words, `b` half as
// many. `c` and `d` have the accumulator's type: 4 words of f32 or s32, 2 of f16; d may be c.
struct MmaShape {
    int k;
    Element a, b, accumulator;
};
void mma_sync(MmaShape shape, uint32_t *d, const uint32_t *a, const uint32_t *b, const uint32_t *c,
              Site site);

// ---- atomics (in the runtime, so that the check build does not treat them as plain accesses) ----
// Replaces the `bytes` (2, 4 or 8) at `address` by next(old value, operand); returns the old value.
typedef uint64_t (*NextValue)(uint64_t old, const void *operand);
uint64_t atomic_update(void *address, unsigned bytes, NextValue next, const void *operand,
                       Site site, Order order = Order::relaxed, Scope scope = Scope::gpu);
uint64_t atomic_load(const void *address, unsigned bytes, Site site, Order order = Order::relaxed,
                     Scope scope = Scope::gpu);
void atomic_store(void *address, uint64_t value, unsigned bytes, Site site,
                  Order order = Order::relaxed, Scope scope = Scope::gpu);

// ---- the device heap: malloc and free in a kernel; blocks live until the run ends ----
void *device_malloc(size_t bytes);
void device_free(void *pointer, Site site);

// ---- one kernel library ----
constexpr int MAX_SHARED_ARRAYS = 128;
constexpr int MAX_MARKS = 16384;
struct SharedArray {
    uint32_t offset, size;  // bytes, in the static shared window
    const char *name;
};
struct Module {
    uint32_t end;  // bytes of the static window in use
    int count;
    uint8_t *valid;  // 1 for every byte that belongs to an array
    bool needs_whole_grid;  // some kernel calls grid_sync
    uint32_t grid_barrier;
    uint32_t *asks_for_cluster;  // if set, kernels write their __cluster_dims__ there and return
    SharedArray arrays[MAX_SHARED_ARRAYS];
    uint8_t ran[MAX_MARKS];  // check build: executed statements (instrument.py)
};
// Called while the library is loaded, once per static __shared__ array.
uint32_t allocate_shared(Module *module, size_t bytes, size_t alignment, const char *name);

}  // namespace coh
#pragma GCC visibility pop
