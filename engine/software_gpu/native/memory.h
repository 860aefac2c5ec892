// Memory that kernels can access: device memory, at addresses of its own, and pinned or managed host memory,
// at its host address.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace memory {

// Bit 47 is never set in an address of a Linux process: host code that dereferences one faults.
constexpr uint64_t FIRST_ADDRESS = 0x800000000000ull;
constexpr uint64_t ALIGNMENT = 512;        // cuMemAlloc guarantees at least 256
constexpr uint64_t GAP = 2 << 20;          // after each allocation, so that overruns do not reach the next one
constexpr uint8_t UNWRITTEN = 0xa5;        // contents of new memory, which CUDA leaves undefined
constexpr uint64_t PIECE = 64 << 20;       // unit of memory that is filled on first access

enum class Kind { DEVICE, PINNED, MANAGED, REGISTERED, MODULE };

struct Allocation {
    uint64_t address, size;
    uint8_t* host;
    uint64_t mapped;  // bytes to unmap; 0: not owned
    Kind kind;
    int device;
    const void* context = nullptr;  // freed with it; null for stream-ordered allocations
    bool going = false;  // a queued operation will free it
};

// Never destroyed: work may continue while the process exits.
inline std::mutex& lock = *new std::mutex;
inline std::map<uint64_t, Allocation>& by_address = *new std::map<uint64_t, Allocation>;
inline uint64_t next_address = FIRST_ADDRESS;
inline uint64_t changes = 1;  // counts allocations and frees
inline uint64_t used[64] = {};  // bytes, per device

// Pages that contain the pattern without being written: a private mapping of a file, copied on write.
inline uint8_t* map_unwritten(uint64_t size) {
    const int protection = PROT_READ | PROT_WRITE;
    void* at = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    auto* bytes = static_cast<uint8_t*>(at);
    if (size <= PIECE) {
        std::memset(bytes, UNWRITTEN, size);
        return bytes;
    }
    static const int file = [] {
        const int made = memfd_create("unwritten", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, PIECE)) return -1;
        void* piece = mmap(nullptr, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (piece == MAP_FAILED) return -1;
        std::memset(piece, UNWRITTEN, PIECE);
        munmap(piece, PIECE);
        return made;
    }();
    for (uint64_t done = 0; file >= 0 && done < size; done += PIECE)
        mmap(bytes + done, std::min(PIECE, size - done), protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0);
    return bytes;
}

inline uint64_t page_aligned(uint64_t size) { return (size + 4095) & ~uint64_t{4095}; }

// Whether all of these bytes are mapped: sizes come from the program and may be wrong.
inline bool is_mapped(const uint8_t* at, uint64_t size) {
    const uint64_t begin = reinterpret_cast<uint64_t>(at) & ~uint64_t{4095};
    const uint64_t bytes = page_aligned(reinterpret_cast<uint64_t>(at) + size - begin);
    std::vector<unsigned char> pages(bytes / 4096);
    return mincore(reinterpret_cast<void*>(begin), bytes, pages.data()) == 0;
}

// An unused address for `size` bytes: freed addresses are not reused, so they never become valid again.
inline uint64_t new_address(uint64_t size) {
    const uint64_t address = next_address;
    next_address += (size + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return address;
}

inline void add(const Allocation& a) {
    by_address[a.address] = a;
    changes++;
    if (a.kind == Kind::DEVICE) used[a.device] += a.size;
}

// 0 if there is not enough memory.
inline uint64_t allocate(uint64_t size, Kind kind, int device, const void* context, uint64_t capacity) {
    std::lock_guard<std::mutex> hold(lock);
    const bool on_device = kind == Kind::DEVICE;
    if (on_device && (size > capacity || used[device] + size > capacity)) return 0;
    static const uint64_t of_host = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (!on_device && size > of_host) return 0;
    uint8_t* host = map_unwritten(page_aligned(size));
    if (!host) return 0;
    const uint64_t address = on_device ? new_address(size) : reinterpret_cast<uint64_t>(host);
    add({address, size, host, page_aligned(size), kind, device, context});
    return address;
}

inline void drop(const Allocation& a) {
    changes++;
    if (a.kind == Kind::DEVICE) used[a.device] -= a.size;
    if (a.mapped) munmap(a.host, a.mapped);
}

inline bool release(uint64_t address, std::initializer_list<Kind> kinds) {
    std::lock_guard<std::mutex> hold(lock);
    const auto it = by_address.find(address);
    if (it == by_address.end()) return false;
    const Allocation a = it->second;
    bool fits = false;
    for (const Kind kind : kinds) fits |= kind == a.kind;
    if (!fits) return false;
    by_address.erase(it);
    drop(a);
    return true;
}

inline void release_all(const void* context) {
    std::lock_guard<std::mutex> hold(lock);
    for (auto it = by_address.begin(); it != by_address.end();) {
        if (it->second.context != context) {
            ++it;
            continue;
        }
        drop(it->second);
        it = by_address.erase(it);
    }
}

// Marks the allocation at `address` as to be freed by a stream; false if it already is.
inline bool begin_release(uint64_t address) {
    std::lock_guard<std::mutex> hold(lock);
    const auto it = by_address.find(address);
    if (it == by_address.end() || it->second.kind != Kind::DEVICE || it->second.going) return false;
    return it->second.going = true;
}

inline const Allocation* find_locked(uint64_t address) {
    auto it = by_address.upper_bound(address);
    if (it == by_address.begin()) return nullptr;
    const Allocation& a = (--it)->second;
    return address - a.address < a.size ? &a : nullptr;
}

inline bool find(uint64_t address, Allocation& out) {
    std::lock_guard<std::mutex> hold(lock);
    const Allocation* a = find_locked(address);
    if (a) out = *a;
    return a != nullptr;
}

inline bool is_device_address(uint64_t address) { return address >= FIRST_ADDRESS; }

// Whether none, some or all of `size` bytes at `address` are CUDA's memory.
enum class Part { NONE, SOME, WHOLE };

inline Part part_of(uint64_t address, uint64_t size) {
    std::lock_guard<std::mutex> hold(lock);
    if (const Allocation* a = find_locked(address)) return size <= a->size - (address - a->address) ? Part::WHOLE : Part::SOME;
    const auto next = by_address.upper_bound(address);
    return next != by_address.end() && next->first - address < size ? Part::SOME : Part::NONE;
}

// Host memory of `size` bytes at `address`; null if they are not all in one allocation.
inline uint8_t* on_host(uint64_t address, uint64_t size) {
    if (!is_device_address(address)) return reinterpret_cast<uint8_t*>(address);
    Allocation a;
    if (!find(address, a) || size > a.size - (address - a.address)) return nullptr;
    return a.host + (address - a.address);
}

}  // namespace memory
