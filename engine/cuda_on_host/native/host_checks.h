// What the check build adds to a kernel's source (instrument.py): a mark at every statement, a value
// for every local variable that is declared without one.
//
// Variable number `id` gets NaN in every floating-point format, which fmaxf() and fminf() ignore, or
// in another run a large finite number, which they do not: a kernel whose output differs has used
// what nobody wrote. As an integer both are far outside of any array.
#pragma once

namespace coh {

// Statement number `mark` was reached. As an instruction of its own, because the compiler's
// instrumentation would look at a plain store each time.
COH_INLINE void reached(int mark) {
#if defined(__x86_64__)
    __asm__ volatile("movb $1, %0" : "=m"(coh_module.ran[mark]));
#else
    coh_module.ran[mark] = 1;
#endif
}

constexpr uint16_t NAN_LOCAL = 0x7FD3, FINITE_LOCAL = 0x7F5A;  // the second is NaN in FP16 alone

template <class T>
COH_INLINE void fill_with(T &x, uint16_t pattern) {
    if constexpr (std::is_array_v<T>) {
        for (auto &element : x) fill_with(element, pattern);
    } else if constexpr (std::is_same_v<std::remove_cv_t<T>, bool>) {
        x = pattern == NAN_LOCAL;
    } else if constexpr (std::is_trivially_default_constructible_v<T> &&
                         std::is_trivially_copyable_v<T> && std::is_assignable_v<T &, T>) {
        uint16_t words[(sizeof(T) + 1) / 2];
        for (uint16_t &word : words) word = pattern;
        std::remove_cv_t<T> filled;
        memcpy(&filled, words, sizeof filled);
        x = filled;
    }
}
template <class T>
COH_INLINE void begin_local(T &x) {
    if constexpr (std::is_array_v<T> || std::is_class_v<T>) local_begins((const void *)__builtin_addressof(x), sizeof x);
}
template <class T>
COH_INLINE void fill_local(T &x, uint32_t id) {
    begin_local(x);
    fill_with(x, id < self->finite_locals ? FINITE_LOCAL : NAN_LOCAL);
}

}  // namespace coh
