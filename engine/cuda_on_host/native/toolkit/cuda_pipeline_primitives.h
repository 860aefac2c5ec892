#pragma once

COH_INLINE void __pipeline_memcpy_async(void *destination, const void *source, size_t bytes,
                                        size_t zero_fill = 0,
                                        coh::Site site = coh::Site::here()) {
    coh::cp_async(destination, source, (unsigned)bytes, (unsigned)(bytes - zero_fill), site);
}
COH_INLINE void __pipeline_commit() { coh::cp_async_commit(); }
COH_INLINE void __pipeline_wait_prior(size_t groups) { coh::cp_async_wait((unsigned)groups); }
