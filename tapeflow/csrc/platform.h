/* What differs between systems: aligned memory, huge pages, bit counts, the level of the CPU. */
#ifndef TPF_PLATFORM_H
#define TPF_PLATFORM_H

#include <stdlib.h>

#include "exec.h"

#if defined(_MSC_VER)
#include <intrin.h>
#include <malloc.h>
static inline void *tpf_aligned_alloc(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
static inline void tpf_aligned_free(void *p) { _aligned_free(p); }
static inline int clz64(uint64_t x) { return (int)__lzcnt64(x); }
#else
static inline void *tpf_aligned_alloc(size_t alignment, size_t size) {
    void *p = NULL;
    return posix_memalign(&p, alignment, size) == 0 ? p : NULL;
}
static inline void tpf_aligned_free(void *p) { free(p); }
static inline int clz64(uint64_t x) { return __builtin_clzll(x); } /* x > 0 */
#endif

#if defined(__linux__)
#include <sys/mman.h>
static inline void tpf_advise_huge(void *p, size_t size) { (void)madvise(p, size, MADV_HUGEPAGE); }
#else
static inline void tpf_advise_huge(void *p, size_t size) { (void)p, (void)size; }
#endif

/* TPF_DEBUG (sanitizer and boundscheck builds): the engine's invariants are asserted. */
#ifdef TPF_DEBUG
#include <stdio.h>
#define TPF_ASSERTING 1
static inline void tpf_ensure(int holds, const char *invariant) {
    if (holds) return;
    fprintf(stderr, "tapeflow: broken invariant: %s\n", invariant);
    abort();
}
#else
#define TPF_ASSERTING 0
static inline void tpf_ensure(int holds, const char *invariant) { (void)holds, (void)invariant; }
#endif

/* TPF_NO_POOL (sanitizer builds): every buffer is its own malloc block of exactly its size. */
#ifdef TPF_NO_POOL
#define TPF_POOLED 0
#else
#define TPF_POOLED 1
#endif

/* A dead entry's slot in a chunk, hidden from the sanitizer until it is used again. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define tpf_poison(p, size) ASAN_POISON_MEMORY_REGION(p, size)
#define tpf_unpoison(p, size) ASAN_UNPOISON_MEMORY_REGION(p, size)
#else
#define tpf_poison(p, size) ((void)(p), (void)(size))
#define tpf_unpoison(p, size) ((void)(p), (void)(size))
#endif

#ifdef TPF_HAVE_X86_LEVELS
extern const tpf_kernels tpf_kernels_v2, tpf_kernels_v3, tpf_kernels_v4;
/* The kernels of the best level that this CPU has and `most` (2, 3, 4) allows. */
static inline const tpf_kernels *tpf_choose_kernels(int most) {
    __builtin_cpu_init();
    if (most >= 4 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &tpf_kernels_v4;
    if (most >= 3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        return &tpf_kernels_v3;
    return &tpf_kernels_v2;
}
#else
extern const tpf_kernels tpf_kernels_base;
static inline const tpf_kernels *tpf_choose_kernels(int most) {
    (void)most;
    return &tpf_kernels_base;
}
#endif

/* The thread's record; owned and freed by a Python object that the thread keeps (tape.pxi). */
static TPF_THREAD_LOCAL void *tpf_thread;
static inline void *tpf_get_thread(void) { return tpf_thread; }
static inline void tpf_set_thread(void *p) { tpf_thread = p; }

#endif
