// Requests to the emulator. `Code` and <cstdint> come before this.
struct Request {
    const Code* code;
    int32_t arch;                 // 75 … 120
    uint32_t grid[3], block[3], cta[3];
    const uint8_t* constants[8];  // banks; bank 0 with the launch filled in
    int32_t constant_bytes[8];
    uint32_t smem_bytes;          // addressable, the reserved first KiB of sm_90 included
    uint32_t local_bytes;         // a power of two, per thread
    int64_t max_steps;            // warp instructions
    int32_t keep_trace;
    const uint8_t* left_out;      // [n] barriers to ignore, to find which others are needed
    int32_t find_hazards;         // which barriers order accesses
    uint64_t known_at[2];         // words of global memory with known contents: a table,
    const uint8_t* known[2];      // lengths
    uint32_t known_bytes[2];
    const int32_t* probe_site;    // [n] index of a probed instruction, else -1
    uint64_t* probe_out;          // [sites] the lowest sector of the first access, 0: not reached
    int32_t probe_sites;          // the CTA ends when all have one
    // Only where memory is real:
    const struct Buffer* buffers;  // all of global memory, ascending
    int32_t buffer_count;
    uint32_t cluster[3];           // CTAs
    uint64_t clock;                // of the SMs when the launch begins
    int32_t reversed;              // CTAs, and warps of each, run in the reverse of their order
    struct Hazard* hazards;        // [hazard_capacity] found in shared memory; null: not looked for
    int32_t hazard_capacity;
    int32_t* hazard_count;         // of all that were found
    uint64_t watched;              // an address whose last write is wanted
    struct Write* last_write;      // null: of none
    const int64_t* chosen;         // [chosen_count] numbers of the clusters that run; null: all do
    int64_t chosen_count;
};

struct Write {
    int32_t at;  // instruction, -1: nothing wrote it
    uint32_t cta[3];
    int32_t warp;
};

// Two unordered accesses to the same bytes.
struct Hazard {
    int32_t kind;                   // 0: a read of a write, 1: a write of what was read, 2: of what was
                                    // written, 3: a read by the async proxy without its fence,
                                    // 4: an exit before a copy has read what it stores, 5: of a CTA
                                    // whose shared memory another one of its cluster uses
    int32_t before, now;            // instructions
    int32_t under_way;              // 1: the earlier one was asynchronous and not waited for
    int32_t warp_before, warp_now;  // of the CTA, -1: a copy by TMA; the earlier one of the cluster where global
    uint32_t cta[3];                // whose shared memory it is, or who made the later access of global memory
    int32_t global;                 // 1: of global memory
    int32_t warps_per_cta;
    uint64_t address;
    int64_t other_cluster;          // that made the earlier access of global memory
    int64_t count;
};

// Global memory from `base` on, as it lies on the host.
struct Buffer {
    uint64_t base, size;
    uint8_t* host;
    uint64_t kept;  // 1: read-only because shared with others: a write is a fault
};
