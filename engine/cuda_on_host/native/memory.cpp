// Addresses of the shared window, and global buffers with guard zones.
namespace coh {

std::vector<Buffer> buffers;
Buffer device_variables{"a __device__ variable"};

// ---- shared memory ----
uint32_t allocate_shared(Module *module, size_t bytes, size_t alignment, const char *name) {
    if (!module->valid) module->valid = (uint8_t *)calloc(STATIC_WINDOW_BYTES, 1);
    const size_t end = std::max<size_t>(module->end, SHARED_ARRAY_GAP_BYTES);
    const size_t offset = (end + alignment - 1) / alignment * alignment;
    if (offset + bytes + SHARED_ARRAY_GAP_BYTES > STATIC_WINDOW_BYTES ||
        module->count == MAX_SHARED_ARRAYS) {
        module->end = UINT32_MAX;  // reported by the launch, as no kernel is running yet
        return 0;
    }
    module->arrays[module->count++] = SharedArray{(uint32_t)offset, (uint32_t)bytes, name};
    module->end = (uint32_t)(offset + bytes + SHARED_ARRAY_GAP_BYTES);
    memset(module->valid + offset, 1, bytes);
    return (uint32_t)offset;
}

// Dynamic memory gets the low addresses: a wgmma descriptor holds only 18 bits.
// After the own window follow those of the cluster's CTAs by rank, CLUSTER_STRIDE apart.
constexpr uint32_t CLUSTER_STRIDE = 2 * WINDOW_BYTES;

uint32_t shared_address(const void *pointer, Site site) {
    size_t offset = (uintptr_t)pointer - (uintptr_t)worker->window;
    uint32_t first = 0;
    if (__builtin_expect(offset >= WINDOW_BYTES, 0)) {
        const Worker *owner = owner_of(pointer);
        if (!owner) fail_at("illegal address", site, "pointer %p is not in shared memory", pointer);
        offset = (uintptr_t)pointer - (uintptr_t)owner->window;
        first = (owner->rank + 1) * CLUSTER_STRIDE;
    }
    return first + (uint32_t)((offset + DYNAMIC_WINDOW_BYTES) % WINDOW_BYTES);
}
void *cluster_memory(uint64_t address, Site site) {
    if (address < CLUSTER_STRIDE) return shared_pointer(address, site);
    const uint64_t rank = address / CLUSTER_STRIDE - 1, offset = address % CLUSTER_STRIDE;
    if (!worker->cluster || rank >= worker->cluster->workers.size() || offset >= WINDOW_BYTES) {
        fail_at("illegal address", site, "shared::cluster address %llu is outside of the cluster's "
                "shared memory", (unsigned long long)address);
    }
    return worker->cluster->workers[rank]->window + (offset + STATIC_WINDOW_BYTES) % WINDOW_BYTES;
}
bool is_in_cluster_memory(const void *pointer) { return owner_of(pointer) != nullptr; }

void *shared_pointer(uint64_t address, Site site) {
    if (worker->cluster && address >= CLUSTER_STRIDE) {
        fail_at("illegal address", site, "the address is one of shared::cluster, which this "
                "instruction on .shared does not take: write .shared::cluster");
    }
    if (address >= WINDOW_BYTES) {
        fail_at("illegal address", site, "shared address %llu is outside shared memory",
                (unsigned long long)address);
    }
    return worker->window + (address + STATIC_WINDOW_BYTES) % WINDOW_BYTES;
}

void describe_shared(const void *pointer, char *text, size_t size) {
    const Worker *owner = owner_of(pointer);
    if (!owner) owner = worker;
    const size_t offset = (uintptr_t)pointer - (uintptr_t)owner->window;
    if (owner != worker) {
        const int used = snprintf(text, size, "CTA rank %u's ", owner->rank);
        text += used;
        size -= used;
    }
    if (offset >= STATIC_WINDOW_BYTES) {
        snprintf(text, size, "dynamic shared memory byte %lld of %u",
                 (long long)((char *)pointer - owner->dynamic_smem), self->dynamic_smem_bytes);
        return;
    }
    const SharedArray *nearest = nullptr;  // the array that contains or precedes the offset
    for (int i = 0; i < launch.module->count; i++) {
        const SharedArray &array = launch.module->arrays[i];
        if (array.offset <= offset && (!nearest || array.offset > nearest->offset)) {
            nearest = &array;
        }
    }
    if (nearest) {
        snprintf(text, size, "shared array '%s' byte %zu of %u", nearest->name,
                 offset - nearest->offset, nearest->size);
    } else {
        snprintf(text, size, "static shared memory before the first array");
    }
}

// ---- global buffers ----
// Bit patterns that are NaN in FP16, BF16 and FP32 and that no kernel computes, for unwritten
// buffers and for slack zones. They differ because arithmetic propagates a NaN's bits: a value that
// a kernel read past a buffer's end and stored must not look like an unwritten element.
constexpr uint16_t POISON = 0x7FA5;
constexpr uint16_t SLACK = 0x7FB6;

// By address parity, so that zones may begin and end at odd addresses.
static char pattern_byte(const char *p, uint16_t pattern) {
    return (char)(((uintptr_t)p & 1) ? pattern >> 8 : pattern & 0xff);
}
static bool is_slack(const char *p) { return *p == pattern_byte(p, SLACK); }

static void fill(char *begin, size_t bytes, uint16_t pattern) {
    const size_t first = std::min<size_t>(bytes, 64);
    for (size_t i = 0; i < first; i++) begin[i] = pattern_byte(begin + i, pattern);
    for (size_t done = first; done < bytes;) {  // copies the beginning, up to a page at a time
        const size_t piece = std::min({done, bytes - done, PAGE_BYTES});
        memcpy(begin + done, begin, piece);
        done += piece;
    }
}

static char *data_begin(const Buffer &b) { return b.mapping + b.guard_size; }
static char *data_end(const Buffer &b) { return b.mapping + b.mapping_size - b.guard_size; }

// The first slack byte that changed, or null.
static const char *damaged_slack(const Buffer &b) {
    if (b.sparse) return nullptr;  // no slack zones
    for (const char *p = b.base - 1; p >= data_begin(b); p--) {
        if (!is_slack(p)) return p;
    }
    for (const char *p = b.base + b.size; p < data_end(b); p++) {
        if (!is_slack(p)) return p;
    }
    return nullptr;
}

Buffer *buffer_around(uintptr_t address) {
    for (Buffer &b : buffers) {
        if (address - (uintptr_t)b.mapping < b.mapping_size) return &b;
    }
    return nullptr;
}

static size_t whole_pages(size_t bytes) {
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static size_t num_granules(const Buffer &b) { return b.size / GRANULE_BYTES + 1; }

static void free_shadow(Buffer &b) {
    if (!b.writes) return;
    munmap(b.writes, whole_pages(num_granules(b) * sizeof *b.writes));
    munmap(b.reads, whole_pages(num_granules(b) * sizeof *b.reads));
    b.writes = nullptr;
    b.reads = nullptr;
    b.is_read = false;
}
// Zero pages, which take memory only where the kernel writes or reads writable memory.
static bool make_shadow(Buffer &b) {
    auto zeros = [](size_t bytes) {
        return mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    void *writes = zeros(num_granules(b) * sizeof *b.writes);
    void *reads = zeros(num_granules(b) * sizeof *b.reads);
    if (writes == MAP_FAILED || reads == MAP_FAILED) return false;
    b.writes = (GlobalAccess *)writes;
    b.reads = (GlobalReads *)reads;
    return true;
}

constexpr size_t CHUNK_BYTES = 256 << 10;
static size_t num_chunks(const Buffer &b) { return b.size / CHUNK_BYTES + 1; }

static int open_pages(Buffer &b, size_t offset, size_t size) {
    char *begin = b.base + offset / PAGE_BYTES * PAGE_BYTES;
    char *end = std::min(b.base + whole_pages(offset + size), b.base + whole_pages(b.size));
    const size_t bytes = end - begin;
#ifdef __linux__
    if (b.uninitialised) {
        // Poison a separate mapping and then move it into place: another host thread may write to
        // pages as soon as they are accessible, and poisoning them later would overwrite that.
        void *poisoned = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (poisoned == MAP_FAILED) return 0;
        fill((char *)poisoned, bytes, POISON);
        const int how = MREMAP_MAYMOVE | MREMAP_FIXED;
        if (mremap(poisoned, bytes, bytes, how, begin) != MAP_FAILED) return 1;
        munmap(poisoned, bytes);
        return 0;
    }
#endif
    if (mprotect(begin, bytes, PROT_READ | PROT_WRITE)) return 0;
    // On other systems only pages opened before the launch can be poisoned; the others are zero.
    if (b.uninitialised && !b.opened) fill(begin, bytes, POISON);
    return 1;
}

// Handles an access to a closed part of a sparse buffer; true if the access may be retried.
static bool open_on_access(Buffer &b, uintptr_t address) {
    static std::mutex opening;
    const size_t offset = address - (uintptr_t)b.base, chunk = offset / CHUNK_BYTES;
    if (!b.opened || offset >= b.size) return false;
    std::lock_guard<std::mutex> lock(opening);
    if (b.opened[chunk]) return true;  // opened by another host thread meanwhile
    b.opened[chunk] = true;
    return open_pages(b, chunk * CHUNK_BYTES, CHUNK_BYTES);
}

// Registers the kernel library's writable memory, for a launch of the check build.
static void note_device_variables(uintptr_t begin, uintptr_t end) {
    Buffer &variables = device_variables;
    if (variables.writes && variables.base == (char *)begin) return;
    free_shadow(variables);
    variables.base = (char *)begin;
    variables.size = end - begin;
    if (!make_shadow(variables)) variables.size = 0;
}

// ---- the device heap ----
constexpr size_t DEVICE_HEAP_BYTES = 8 << 20;  // CUDA's default
static std::mutex heap_mutex;
static std::map<uintptr_t, size_t> heap_blocks;  // address -> bytes
static size_t heap_used = 0;

void *device_malloc(size_t bytes) {
    std::lock_guard<std::mutex> lock(heap_mutex);
    if (!bytes || bytes > DEVICE_HEAP_BYTES - heap_used) return nullptr;
    void *pointer = ::aligned_alloc(16, (bytes + 15) & ~(size_t)15);
    if (!pointer) return nullptr;
    memset(pointer, 0xff, bytes);  // NaN, like shared memory
    heap_blocks[(uintptr_t)pointer] = bytes;
    heap_used += bytes;
    return pointer;
}
void device_free(void *pointer, Site site) {
    if (!pointer) return;
    {
        std::lock_guard<std::mutex> lock(heap_mutex);
        const auto block = heap_blocks.find((uintptr_t)pointer);
        if (block != heap_blocks.end()) {
            heap_used -= block->second;
            heap_blocks.erase(block);
            return ::free(pointer);
        }
    }
    fail_at("illegal address", site, "free() of %p, which malloc() of a kernel did not give or which "
            "was freed before", pointer);
}
bool is_on_heap(uintptr_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(heap_mutex);
    auto block = heap_blocks.upper_bound(address);
    if (block == heap_blocks.begin()) return false;
    --block;
    return address + bytes <= block->first + block->second;
}
static void empty_heap() {
    std::lock_guard<std::mutex> lock(heap_mutex);
    for (const auto &[address, bytes] : heap_blocks) ::free((void *)address);
    heap_blocks.clear();
    heap_used = 0;
}

}  // namespace coh

using namespace coh;
#pragma GCC visibility push(default)  // the rest of the runtime is hidden
extern "C" {

// A buffer of `size` bytes with at least `slack` writable bytes that are checked after a launch and
// `guard` inaccessible bytes on either side. Null if there is not enough memory.
void *coh_allocate(const char *name, size_t size, size_t slack, size_t guard, int read_only,
                   int uninitialised) {
    Buffer b{};
    guard = whole_pages(std::max(guard, PAGE_BYTES));
    const size_t body = whole_pages(size + 2 * slack + 256);
    b.mapping_size = body + 2 * guard;
    void *mapping = mmap(nullptr, b.mapping_size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    b.mapping = (char *)mapping;
    b.guard_size = guard;
    if (mprotect(b.mapping + guard, body, PROT_READ | PROT_WRITE)) {
        munmap(mapping, b.mapping_size);
        return nullptr;
    }
    // As close to the end as the alignment allows, as overruns are the common error.
    b.base = (char *)((uintptr_t)(b.mapping + guard + body - slack - size) & ~(uintptr_t)255);
    b.size = size;
    b.read_only = read_only;
    b.uninitialised = uninitialised;
    snprintf(b.name, sizeof b.name, "buffer '%s'", name);
    fill(b.mapping + guard, b.base - (b.mapping + guard), SLACK);
    fill(b.base + size, data_end(b) - (b.base + size), SLACK);
    buffers.push_back(b);
    return b.base;
}

void coh_free_all() {
    for (Buffer &b : buffers) {
        free_shadow(b);
        free(b.opened);
        munmap(b.mapping, b.mapping_size);
    }
    buffers.clear();
}

// Starts a run: poisons every `uninitialised` buffer and marks it as unwritten.
// 0 if there is not enough memory for the check build's records.
int coh_start_run(int check) {
    empty_heap();
    free_shadow(device_variables);
    for (Buffer &b : buffers) {
        free_shadow(b);
        if (check && !b.read_only && !make_shadow(b)) return 0;
        if (b.uninitialised && !b.sparse) fill(b.base, b.size, POISON);
    }
    return 1;
}

// A buffer that may exceed the memory, for a partial launch. Initially closed: an access faults;
// coh_open makes parts accessible. With `opens_itself` an access opens its part, and poisons it if
// the buffer is `uninitialised`. Null if there is not enough address space.
void *coh_allocate_sparse(const char *name, size_t size, size_t guard, int read_only,
                          int uninitialised, int opens_itself) {
    Buffer b{};
    guard = whole_pages(guard);
    b.mapping_size = whole_pages(size) + 2 * guard;
    void *mapping = mmap(nullptr, b.mapping_size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    b.mapping = (char *)mapping;
    b.guard_size = guard;
    b.base = b.mapping + guard;
    b.size = size;
    b.read_only = read_only;
    b.uninitialised = uninitialised;
    b.sparse = true;
    if (opens_itself) b.opened = (uint8_t *)calloc(num_chunks(b), 1);
    snprintf(b.name, sizeof b.name, "buffer '%s'", name);
    buffers.push_back(b);
    return b.base;
}

// Opens bytes of sparse buffer number `index`, in whole pages. 0 if there is not enough memory.
int coh_open(int index, size_t offset, size_t size) { return open_pages(buffers[index], offset, size); }

}  // extern "C"
#pragma GCC visibility pop
