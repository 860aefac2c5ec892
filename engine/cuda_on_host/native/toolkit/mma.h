// Warp matrix functions. CUDA does not specify how a fragment's elements are distributed over the
// lanes; here it is mma.sync's layout. Sums are computed in float64 (integers exactly) and rounded
// once.
#pragma once

#include "cuda_fp16.h"
#include "cuda_bf16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

namespace details {

template <class Element>
struct Stored {
    using type = Element;
};
template <>
struct Stored<precision::tf32> {
    using type = float;
};
template <class Element>
struct IsKnown : std::false_type {};
template <>
struct IsKnown<__half> : std::true_type {};
template <>
struct IsKnown<__nv_bfloat16> : std::true_type {};
template <>
struct IsKnown<precision::tf32> : std::true_type {};
template <>
struct IsKnown<float> : std::true_type {};
template <>
struct IsKnown<double> : std::true_type {};
template <>
struct IsKnown<signed char> : std::true_type {};
template <>
struct IsKnown<unsigned char> : std::true_type {};
template <>
struct IsKnown<int> : std::true_type {};

// Position of a lane's element i in a matrix of `rows` x `columns`: blocks of 8 rows, four lanes a
// row.
template <int ROWS, int COLUMNS>
struct Place {
    static constexpr int per_lane = ROWS * COLUMNS / 32, run = COLUMNS >= 8 ? 2 : 1;
    static constexpr int row_blocks = ROWS / 8;
    COH_METHOD static int row(int lane, int i) { return lane / 4 + 8 * (i / run % row_blocks); }
    COH_METHOD static int column(int lane, int i) {
        return lane % 4 * run + i % run + 4 * run * (i / run / row_blocks);
    }
};

template <class To, class From>
COH_INLINE To narrowed(From v) {
    if constexpr (std::is_same<To, __half>::value || std::is_same<To, __nv_bfloat16>::value) {
        return To((double)v);
    } else {
        return (To)v;
    }
}
template <class Element>
COH_INLINE double widened(const typename Stored<Element>::type &v) {
    if constexpr (std::is_same<Element, precision::tf32>::value) {
        return coh_bit_cast<float>(coh_bit_cast<uint32_t>(v) & ~0x1fffu);  // ignored by TF32
    } else if constexpr (sizeof(v) == 2) {
        return (double)(float)v;
    } else {
        return (double)v;
    }
}

}  // namespace details

template <class Use, int m, int n, int k, class Element, class Layout = void>
class fragment {
    static_assert(details::IsKnown<Element>::value,
                  "the CPU backend has wmma of half, bfloat16, tf32, double, int8 and uint8");
    static constexpr bool is_a = std::is_same<Use, matrix_a>::value;
    static constexpr bool is_b = std::is_same<Use, matrix_b>::value;

public:
    using element_type = Element;
    using storage_element_type = typename details::Stored<Element>::type;
    // B is stored by columns, as the instruction expects it.
    static constexpr int coh_rows = is_b ? n : m, coh_columns = is_a || is_b ? k : n;
    using coh_place = details::Place<coh_rows, coh_columns>;
    // Elements of A and B in half are stored twice, as on a GPU.
    static constexpr int num_elements = coh_place::per_lane *
                                        ((is_a || is_b) && std::is_same<Element, __half>::value &&
                                                 coh_place::per_lane == 8
                                             ? 2
                                             : 1);
    static constexpr int num_storage_elements = num_elements;
    storage_element_type x[num_elements];
};

template <class Use, int m, int n, int k, class Element, class Layout, class Value>
COH_INLINE void fill_fragment(fragment<Use, m, n, k, Element, Layout> &to, const Value &v) {
    for (auto &x : to.x) x = (typename fragment<Use, m, n, k, Element, Layout>::storage_element_type)v;
}

namespace details {

COH_INLINE void check_stride(unsigned stride, size_t bytes, coh::Site site) {
    if (stride * bytes % 16 && bytes < 8) {
        coh::fail("bad wmma", site, "a leading dimension of %u elements: rows must begin 16 bytes "
                  "apart, or a multiple", stride);
    }
}
template <class Fragment, class Element>
COH_INLINE void load(Fragment &to, const Element *from, unsigned stride, bool by_columns,
                     coh::Site site) {
    using Place = typename Fragment::coh_place;
    check_stride(stride, sizeof(Element), site);
    coh::ballot(0xffffffffu, 1, site);  // the whole warp
    const int lane = (int)coh::self->lane;
    for (int i = 0; i < Fragment::num_elements; i++) {
        const int at = i % Place::per_lane;
        const unsigned row = Place::row(lane, at), column = Place::column(lane, at);
        to.x[i] = from[by_columns ? column * stride + row : row * stride + column];
    }
}

}  // namespace details

template <int m, int n, int k, class Element, class Layout, class Memory>
COH_INLINE void load_matrix_sync(fragment<matrix_a, m, n, k, Element, Layout> &to,
                                 const Memory *from, unsigned stride, COH_SITE) {
    details::load(to, from, stride, std::is_same<Layout, col_major>::value, site);
}
template <int m, int n, int k, class Element, class Layout, class Memory>
COH_INLINE void load_matrix_sync(fragment<matrix_b, m, n, k, Element, Layout> &to,
                                 const Memory *from, unsigned stride, COH_SITE) {
    details::load(to, from, stride, std::is_same<Layout, row_major>::value, site);
}
template <int m, int n, int k, class Element, class Memory>
COH_INLINE void load_matrix_sync(fragment<accumulator, m, n, k, Element> &to, const Memory *from,
                                 unsigned stride, layout_t layout, COH_SITE) {
    details::load(to, from, stride, layout == mem_col_major, site);
}
template <int m, int n, int k, class Element, class Memory>
COH_INLINE void store_matrix_sync(Memory *to, const fragment<accumulator, m, n, k, Element> &from,
                                  unsigned stride, layout_t layout, COH_SITE) {
    using Place = details::Place<m, n>;
    details::check_stride(stride, sizeof(Memory), site);
    coh::ballot(0xffffffffu, 1, site);
    for (int i = 0; i < Place::per_lane; i++) {
        const unsigned row = Place::row((int)coh::self->lane, i);
        const unsigned column = Place::column((int)coh::self->lane, i);
        to[layout == mem_col_major ? column * stride + row : row * stride + column] = from.x[i];
    }
}

namespace details {

template <class D, class A, class B, class C>
struct Multiply {
    D *d;
    const A *a;
    const B *b;
    const C *c;
    bool saturate;

    // Reads the registers of all lanes, which the check build would report as an error.
    __attribute__((no_sanitize("thread"))) static void all_lanes(void **operands, uint32_t) {
        using PlaceA = typename A::coh_place;
        using PlaceB = typename B::coh_place;
        using PlaceC = typename C::coh_place;
        constexpr int rows = A::coh_rows, columns = B::coh_rows, depth = A::coh_columns;
        double a[rows][depth], b[columns][depth], c[rows][columns];
        for (int lane = 0; lane < 32; lane++) {
            const Multiply &of = *(const Multiply *)operands[lane];
            for (int i = 0; i < PlaceA::per_lane; i++) {
                a[PlaceA::row(lane, i)][PlaceA::column(lane, i)] =
                    widened<typename A::element_type>(of.a->x[i]);
            }
            for (int i = 0; i < PlaceB::per_lane; i++) {
                b[PlaceB::row(lane, i)][PlaceB::column(lane, i)] =
                    widened<typename B::element_type>(of.b->x[i]);
            }
            for (int i = 0; i < PlaceC::per_lane; i++) {
                c[PlaceC::row(lane, i)][PlaceC::column(lane, i)] =
                    widened<typename C::element_type>(of.c->x[i]);
            }
        }
        for (int row = 0; row < rows; row++) {
            for (int column = 0; column < columns; column++) {
                for (int i = 0; i < depth; i++) c[row][column] += a[row][i] * b[column][i];
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            const Multiply &of = *(const Multiply *)operands[lane];
            for (int i = 0; i < PlaceC::per_lane; i++) {
                double sum = c[PlaceC::row(lane, i)][PlaceC::column(lane, i)];
                using To = typename D::storage_element_type;
                if constexpr (std::is_same<To, int>::value) {
                    if (of.saturate) sum = fmin(fmax(sum, -2147483648.0), 2147483647.0);
                    of.d->x[i] = (int)(long long)sum;  // wraps
                } else {
                    of.d->x[i] = narrowed<To>(sum);
                }
            }
        }
    }
};

}  // namespace details

template <int m, int n, int k, class A, class LayoutA, class B, class LayoutB, class C, class D>
COH_INLINE void mma_sync(fragment<accumulator, m, n, k, D> &d,
                         const fragment<matrix_a, m, n, k, A, LayoutA> &a,
                         const fragment<matrix_b, m, n, k, B, LayoutB> &b,
                         const fragment<accumulator, m, n, k, C> &c, bool saturate = false,
                         COH_SITE) {
    using Multiply = details::Multiply<fragment<accumulator, m, n, k, D>,
                                       fragment<matrix_a, m, n, k, A, LayoutA>,
                                       fragment<matrix_b, m, n, k, B, LayoutB>,
                                       fragment<accumulator, m, n, k, C>>;
    Multiply operands{&d, &a, &b, &c, saturate};
    coh::warp_collective(0xffffffffu, Multiply::all_lanes, &operands, site);
}

COH_INLINE float __float_to_tf32(float v) {
    return coh::ptx::to_tf32(v, coh::ptx::Rounding::none);
}

}  // namespace wmma
}  // namespace nvcuda
