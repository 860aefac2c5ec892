// With real values, dependence on loaded data is not tracked. Included by lanes.h.
#pragma once

struct NoMark {
    template <typename T> void operator=(T) const {}
    template <typename T> void operator|=(T) const {}
    constexpr operator uint32_t() const { return 0; }
};

struct Marks {
    template <typename... T> constexpr Marks(T...) {}
    constexpr NoMark operator[](int) const { return {}; }
    template <typename T> void operator|=(const T&) const {}
    template <typename T> void operator&=(const T&) const {}
    template <typename T> constexpr Marks operator|(const T&) const { return {}; }
    template <typename T> constexpr Marks operator&(const T&) const { return {}; }
    constexpr Marks operator~() const { return {}; }
};
constexpr Marks NO_MARKS{};
inline Marks spread(const Marks&, uint32_t) { return {}; }
