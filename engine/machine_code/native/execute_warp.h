// Members of a warp with real memory. Included in `struct Warp` by warp.h.

// A cp.async in flight: it completes when its group is waited for, as late as PTX allows, so that a missing
// wait has an effect.
struct AsyncCopy {
    uint8_t data[16] = {};
    uint8_t* to = nullptr;
    int size = 0;
};
std::vector<AsyncCopy> in_flight;
uint32_t at_cluster = 0;     // lanes that have arrived in the current phase of the cluster's barrier
int cluster_waits = 0;       // number of waits of this warp for the cluster's barrier
std::vector<size_t> groups;  // ends of the committed groups in `in_flight`
// Accesses in flight of the async proxy, 16 bytes of shared or 4 of global memory each, and the ends of its
// groups.
struct UnderWay {
    std::vector<uint64_t> addresses;
    std::vector<size_t> groups;
    size_t close(size_t open) {  // completes all but the last groups; returns the number of their addresses
        if (groups.size() <= open) return 0;
        const size_t done = groups[groups.size() - open - 1];
        groups.erase(groups.begin(), groups.end() - static_cast<std::ptrdiff_t>(open));
        for (size_t& end : groups) end -= done;
        return done;
    }
};
uint32_t met = 0;  // lanes that wait to reconverge with their mask
Lanes meets = {};
UnderWay multiplied, stored_from, stored_to;  // of wgmma; of TMA stores

Races* looked_for();   // null: hazards are not looked for
size_t self();         // number in the cluster
void reads_shared(Cta& owner, uint64_t address, int width);
void writes_shared(Cta& owner, uint64_t address, int width, bool same = false);
void visits(Cta& owner, uint64_t address);
void touch_shared(const Instruction& i, const Wide& where, int width);
void touch_global(const Instruction& i, const Wide& where, int width, uint8_t* const* at);
void touch_copied(uint64_t address, int width, bool writes);
void finish_reading(UnderWay& reading, size_t open_groups);
void finish_storing(size_t open_groups);
void note_reading(uint64_t address, UnderWay& reading);
void note_write(uint64_t address, int width);
void note_landed(const AsyncCopy& copy);

bool go_straight(int here, uint32_t active, uint32_t ready);
void run_in_part(const Quick& q);
void execute(const Instruction& i);  // a load, store, atomic or copy
void changes_shared();
void load_matrices(const Instruction& i);
void local_memory(const Instruction& i);
void copy_asynchronously(const Instruction& i);
void atomic(const Instruction& i, uint8_t* const* at);
uint8_t* shared_byte(const Instruction& i, uint64_t address, int width);
uint8_t* local_byte(const Instruction& i, uint64_t address, int width, int lane);
uint8_t* generic_byte(const Instruction& i, uint64_t address, int width, int lane);
uint8_t* global_byte(const Instruction& i, uint64_t address, int width);
uint8_t* find_global_byte(const Instruction& i, uint64_t address, int width);
void writes_to(const Instruction& i, const Buffer* buffer);
void multiply(const Instruction& i);
void multiply_integers(const Instruction& i);  // HMMA
uint32_t special(const Instruction& i, int which);
void nothing(const Instruction& i, bool& moves);
bool is_asynchronous(const Instruction& i) const;
void asynchronous(const Instruction& i, bool& moves);
void meet();
void release_cluster();
void leave();  // after an EXIT
void synchronise(const Instruction& i, bool& moves);  // SYNCS
void synchronise(const Instruction& i, bool& moves, uint64_t address, uint32_t group);
void load_tile(const Instruction& i);
void store_tile(const Instruction& i);
void multiply_group(const Instruction& i);  // HGMMA, QGMMA
struct GroupOperands {
    const Operand* in_registers;  // A, or null
    uint64_t a, b;                // descriptors
    bool a_transposed, b_transposed;
    const Operand* sums;          // accumulators; null: start at 0
};
void multiply_group_plainly(const Instruction& i, const GroupOperands& given, bool negated);

void land_copies(size_t open_groups) {
    const size_t committed = groups.size();
    if (committed <= open_groups) return;
    const size_t count = groups[committed - open_groups - 1];
    const bool is_noted = looked_for() != nullptr;
    if (count) changes_shared();
    for (size_t n = 0; n < count; n++) {
        const AsyncCopy& copy = in_flight[n];
        if (copy.size == 16) std::memcpy(copy.to, copy.data, 16);
        else std::memcpy(copy.to, copy.data, copy.size);
        if (is_noted) note_landed(copy);
    }
    in_flight.erase(in_flight.begin(), in_flight.begin() + static_cast<std::ptrdiff_t>(count));
    groups.erase(groups.begin(), groups.end() - static_cast<std::ptrdiff_t>(open_groups));
    for (size_t& end : groups) end -= count;
}
