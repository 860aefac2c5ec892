// Also what <cassert> includes. As the C library's, it may be included again with NDEBUG changed.
#undef assert
#if defined(NDEBUG)
#define assert(condition) ((void)0)
#else
#define assert(condition) coh::assert_that((bool)(condition), #condition)
#endif
