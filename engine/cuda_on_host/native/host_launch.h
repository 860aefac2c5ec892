// How the runtime enters a kernel: COH_EXPORT(number, name) is appended to the source for every
// kernel. The name may be a template instance, including commas.
#pragma once

#define COH_VISIBLE __attribute__((visibility("default")))

extern "C" COH_VISIBLE coh::Module coh_module;  // defined by COH_MODULE

namespace coh {

// Kind of a kernel parameter, to check a launch's arguments.
enum ParameterKind : uint8_t { pointer = 'p', integer = 'i', floating = 'f', structure = 's' };
struct Parameter {
    uint32_t size;  // bytes
    uint32_t kind;  // a ParameterKind
};

template <class T>
constexpr Parameter describe_parameter() {
    using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
    return Parameter{(uint32_t)sizeof(Plain), std::is_pointer<Plain>::value          ? pointer
                                              : std::is_integral<Plain>::value       ? integer
                                              : std::is_floating_point<Plain>::value ? floating
                                                                                     : structure};
}
template <class... Args>
int describe_kernel(void (*)(Args...), Parameter *out) {
    static_assert(sizeof...(Args) <= 64, "a kernel has at most 64 parameters on the CPU");
    static_assert(((sizeof(Args) <= 4096) && ...), "a parameter has at most 4,096 bytes");
    const Parameter parameters[sizeof...(Args) + 1] = {describe_parameter<Args>()...};
    for (size_t i = 0; i < sizeof...(Args); i++) out[i] = parameters[i];
    return (int)sizeof...(Args);
}
template <class... Args, size_t... I>
void call_kernel(void (*kernel)(Args...), void **values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<Args> *>(values[I])...);
}
template <class... Args>
void call_kernel(void (*kernel)(Args...), void **values) {
    call_kernel(kernel, values, std::index_sequence_for<Args...>{});
}

}  // namespace coh

#define COH_EXPORT(NUMBER, ...)                                                          \
    extern "C" COH_VISIBLE void coh_call_##NUMBER(void **values) {                       \
        coh::call_kernel(__VA_ARGS__, values);                                           \
    }                                                                                    \
    extern "C" COH_VISIBLE int coh_describe_##NUMBER(coh::Parameter *out) {              \
        return coh::describe_kernel(__VA_ARGS__, out);                                   \
    }

// Called by the compiler's bounds and alignment checks in a check build.
#pragma GCC visibility push(default)
namespace coh {
void array_index_out_of_bounds(const void *data, uintptr_t index);
void misaligned_access(const void *data, uintptr_t address);
}  // namespace coh
#pragma GCC visibility pop

#if defined(COH_CHECK)
// The handlers are in the kernel library; otherwise zig would link its own.
#define COH_MODULE                                                                       \
    extern "C" {                                                                         \
    COH_VISIBLE coh::Module coh_module;                                                  \
    COH_VISIBLE void *coh_ran() { return coh_module.ran; }                               \
    void __ubsan_handle_out_of_bounds(void *data, uintptr_t index) {                     \
        coh::array_index_out_of_bounds(data, index);                                     \
    }                                                                                    \
    void __ubsan_handle_type_mismatch_v1(void *data, uintptr_t address) {                \
        coh::misaligned_access(data, address);                                           \
    }                                                                                    \
    }
#else
#define COH_MODULE                                                                       \
    extern "C" {                                                                         \
    COH_VISIBLE coh::Module coh_module;                                                  \
    }
#endif
