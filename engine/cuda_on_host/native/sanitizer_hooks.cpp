// Functions that the compiler's instrumentation calls in a check build (-fsanitize=thread,bounds,
// alignment): they replace the sanitizers' runtime libraries.
#pragma GCC visibility push(default)  // the rest of the runtime is hidden
extern "C" {

#define COH_HERE coh::Place::at_program_counter((uint64_t)__builtin_return_address(0))
#define COH_CHECK_ACCESS(KIND) coh::check_access(p, bytes, coh::AccessKind::KIND, COH_HERE)
#define COH_HOOKS(BYTES)                                                                 \
    void __tsan_read##BYTES(void *p) {                                                   \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(read);                                                          \
    }                                                                                    \
    void __tsan_write##BYTES(void *p) {                                                  \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(write);                                                         \
    }                                                                                    \
    void __tsan_read_write##BYTES(void *p) {                                             \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(read);                                                          \
        COH_CHECK_ACCESS(write);                                                         \
    }                                                                                    \
    void __tsan_unaligned_read##BYTES(void *p) {                                         \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(read);                                                          \
    }                                                                                    \
    void __tsan_unaligned_write##BYTES(void *p) {                                        \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(write);                                                         \
    }                                                                                    \
    void __tsan_unaligned_read_write##BYTES(void *p) {                                   \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(read);                                                          \
        COH_CHECK_ACCESS(write);                                                         \
    }                                                                                    \
    void __tsan_volatile_read##BYTES(void *p) {                                          \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(read);                                                          \
    }                                                                                    \
    void __tsan_volatile_write##BYTES(void *p) {                                         \
        constexpr size_t bytes = BYTES;                                                  \
        COH_CHECK_ACCESS(write);                                                         \
    }
COH_HOOKS(1)
COH_HOOKS(2)
COH_HOOKS(4)
COH_HOOKS(8)
COH_HOOKS(16)
#undef COH_HOOKS

void __tsan_read_range(void *p, size_t bytes) { COH_CHECK_ACCESS(read); }
void __tsan_write_range(void *p, size_t bytes) { COH_CHECK_ACCESS(write); }
void *__tsan_memcpy(void *destination, const void *source, size_t bytes) {
    coh::check_access(source, bytes, coh::AccessKind::read, COH_HERE);
    coh::check_access(destination, bytes, coh::AccessKind::write, COH_HERE);
    return memcpy(destination, source, bytes);
}
void *__tsan_memset(void *destination, int value, size_t bytes) {
    coh::check_access(destination, bytes, coh::AccessKind::write, COH_HERE);
    return memset(destination, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
#undef COH_CHECK_ACCESS
#undef COH_HERE

}  // extern "C"
#pragma GCC visibility pop

namespace coh {

// Data layouts that compilers pass to the UBSan handlers.
struct UbsanLocation {
    const char *file;
    uint32_t line, column;
    Site site() const { return Site{file, (int)line}; }
};
struct UbsanType {
    uint16_t kind, info;  // info: bit 0 is signedness, the rest log2 of the bits
    char name[1];
};
struct UbsanOutOfBounds {
    UbsanLocation location;
    const UbsanType *array, *index;
};
struct UbsanMismatch {
    UbsanLocation location;
    const UbsanType *type;
    uint8_t log2_alignment, kind;
};

void array_index_out_of_bounds(const void *data, uintptr_t index) {
    if (!worker || !worker->leader->in_cta) return;
    const UbsanOutOfBounds &found = *(const UbsanOutOfBounds *)data;
    const bool is_signed = found.index->info & 1, is_32_bits = found.index->info >> 1 == 5;
    const long long value = is_signed && is_32_bits ? (int)index : (long long)index;
    fail_at("array index out of bounds", found.location.site(), "index %lld is outside type %s",
            value, found.array->name);
}

void misaligned_access(const void *data, uintptr_t address) {
    if (!worker || !worker->leader->in_cta) return;
    const UbsanMismatch &found = *(const UbsanMismatch *)data;
    const unsigned alignment = 1u << found.log2_alignment;
    if (!address) fail_at("illegal address", found.location.site(), "null pointer access");
    fail_at("misaligned address", found.location.site(),
            "access of type %s at 0x%llx needs %u-byte alignment", found.type->name,
            (unsigned long long)address, alignment);
}

}  // namespace coh
