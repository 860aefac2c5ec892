// Code that the check build adds to a kernel's source (instrument.py): a mark at every statement,
// and a value for every local variable that is declared without an initialiser.
//
// Variable number `id` is NaN in every floating-point format in one run (which fmaxf() and fminf()
// ignore) and a large finite number in another (which they do not ignore): if the outputs differ,
// the kernel has used an uninitialised variable. As an integer both are far outside of any array.
#pragma once

namespace coh {

// Records that statement number `mark` was reached. In inline assembly, because the compiler would
// instrument a plain store.
COH_INLINE void reached(int mark) {
#if defined(__x86_64__)
    __asm__ volatile("movb $1, %0" : "=m"(coh_module.ran[mark]));
#else
    coh_module.ran[mark] = 1;
#endif
}

constexpr uint16_t NAN_LOCAL = 0x7FD3, FINITE_LOCAL = 0x7F5A;  // the second is NaN only in FP16

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
