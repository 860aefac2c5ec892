// LSE, the logarithm of each row's sum of exponentials, if a problem asks for it in addition to O
// (-DHAS_LSE=1), as the backward pass and a fusion of parts need it. Otherwise the machine code
// contains none of this.
#pragma once

#ifndef HAS_LSE
#define HAS_LSE 0
#endif

#if HAS_LSE
#define LSE_PARAMETER , float* __restrict__ lse  // [batch, num_heads, seqlen], natural
#define LSE_PARAMETER_AND_SEQLEN LSE_PARAMETER, int seqlen
// Stores one row's LSE, by one thread, from its scaled maximum in base 2 and the reciprocal of its
// sum of exp2.
#define STORE_LSE(is_its_thread, row, m_log2, inv_l) \
    if (is_its_thread) lse[row] = ((m_log2) - __log2f(inv_l)) * 0.693147181f  // ln(2)
#else
#define LSE_PARAMETER
#define LSE_PARAMETER_AND_SEQLEN
#define STORE_LSE(is_its_thread, row, m_log2, inv_l)
#endif
