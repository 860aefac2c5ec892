// Requests to the emulator. Include <cstdint> and declare `Code` first.
struct Request {
    const Code* code;
    int32_t arch;                 // 75 … 120
    uint32_t grid[3], block[3], cta[3];
    const uint8_t* constants[8];  // banks; bank 0 with the launch filled in
    int32_t constant_bytes[8];
    uint32_t smem_bytes;          // addressable bytes, including the reserved first KiB of sm_90
    uint32_t local_bytes;         // per thread, a power of two
    int64_t max_steps;            // warp instructions
    int32_t keep_trace;
    const uint8_t* left_out;      // [n] barriers to ignore, to find out which others are needed
    int32_t find_hazards;         // whether to find out which barriers order accesses
    uint64_t known_at[2];         // words of global memory with known contents: a table,
    const uint8_t* known[2];      // lengths
    uint32_t known_bytes[2];
    const int32_t* probe_site;    // [n] index of a probed instruction, else -1
    uint64_t* probe_out;          // [sites] lowest sector of the first access, 0: not reached
    int32_t probe_sites;          // the CTA ends when all sites have been reached
    // Only with real memory:
    const struct Buffer* buffers;  // all of global memory, in ascending order
    int32_t buffer_count;
    uint32_t cluster[3];           // CTAs per cluster
    uint64_t clock;                // of the SMs at the beginning of the launch
    int32_t reversed;              // CTAs, and warps of each, run in reverse order
    struct Hazard* hazards;        // [hazard_capacity] hazards found; null: not looked for
    int32_t hazard_capacity;
    int32_t* hazard_count;         // number of hazards found
    uint64_t watched;              // address whose last write is to be reported
    struct Write* last_write;      // null: not wanted
    const int64_t* chosen;         // [chosen_count] numbers of the clusters to run; null: all
    int64_t chosen_count;
};

struct Write {
    int32_t at;  // index of the instruction, -1: not written
    uint32_t cta[3];
    int32_t warp;
};

// Two unordered accesses to the same bytes.
struct Hazard {
    int32_t kind;                   // 0: read after write, 1: write after read, 2: write after write,
                                    // 3: read by the async proxy without its fence,
                                    // 4: exit before a copy has read its source, 5: exit of a CTA
                                    // whose shared memory another CTA of the cluster uses
    int32_t before, now;            // instructions
    int32_t under_way;              // 1: the earlier access was asynchronous and not waited for
    int32_t warp_before, warp_now;  // in the CTA (before, if global: in the cluster); -1: a TMA copy
    uint32_t cta[3];                // the shared memory's owner, or the CTA of the later access to global memory
    int32_t global;                 // 1: global memory
    int32_t warps_per_cta;
    uint64_t address;
    int64_t other_cluster;          // the cluster of the earlier access to global memory
    int64_t count;
};

// Global memory at address `base`, and its host memory.
struct Buffer {
    uint64_t base, size;
    uint8_t* host;
    uint64_t read_only;  // 1: read-only, as it is shared with others; a write is an error
};
