/* One pool of threads for the process.

   A region is one tpf_parallel call: chunks of a range, taken from an atomic counter by the caller
   and by every worker that wakes in time. Invariants:
   - chunks begin at multiples of grain, also when they run inline, so a kernel may rely on them;
   - `busy` is held for the whole region: nobody else touches the pool, and a nested call or a
     second caller, finding it taken, runs its own range inline (no deadlock is possible);
   - a worker joins (`active`) and leaves a region under the lock, and only while `open`; the caller
     closes the region and waits until active is 0. It never waits for a worker that still sleeps;
   - after fork the child starts from nothing: the old pool is left behind, whatever its state.
     (A child forked by a chunk itself must not return into its region.)
   Without POSIX threads everything runs inline. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "tpf.h"

static void run_inline(tpf_range fn, void *ctx, int64_t n, int64_t grain) {
    for (int64_t i = 0; i < n; i += grain)
        fn(ctx, i, n - i < grain ? n : i + grain);
}

#ifdef _WIN32

void tpf_parallel(tpf_range fn, void *ctx, int64_t n, int64_t grain) {
    run_inline(fn, ctx, n, grain < 1 ? 1 : grain);
}

void tpf_set_num_threads(int n) { (void)n; }
int tpf_get_num_threads(void) { return 1; }

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define STACK_SIZE (2 << 20) /* some systems give a thread 128 KiB, kernels keep tiles on the stack */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    int workers; /* threads that exist */
    int limit;   /* threads that should; one that finds more of them than this exits */
    int open;    /* there may be chunks that nobody has taken */
    int active;  /* workers inside the region */
    tpf_range fn;
    void *ctx;
    int64_t n, grain, chunks;
    atomic_llong next;
    struct pool *left_behind; /* the parent's pool, in a forked child: never used, still reachable */
} pool;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pool *the_pool, *left_behind; /* touched only while busy is held, and after fork */
static atomic_int busy, wanted;      /* wanted 0: not chosen yet */

static void after_fork_in_child(void) {
    if (the_pool)
        left_behind = the_pool;
    the_pool = NULL;
    atomic_store(&busy, 0);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static int usable_cpus(void) {
    long n = 0;
#ifdef __linux__
    for (int cpus = 1024; cpus <= 1 << 16 && !n; cpus *= 4) { /* too small a set is refused */
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t size = CPU_ALLOC_SIZE(cpus);
        if (!set)
            break;
        CPU_ZERO_S(size, set);
        if (sched_getaffinity(0, size, set) == 0)
            n = CPU_COUNT_S(size, set);
        CPU_FREE(set);
    }
#endif
    if (n < 1)
        n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

int tpf_get_num_threads(void) {
    int n = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (n == 0) {
        int none = 0;
        n = usable_cpus();
        if (!atomic_compare_exchange_strong(&wanted, &none, n))
            n = none; /* somebody has just chosen */
    }
    return n;
}

/* The pool follows at the next region. */
void tpf_set_num_threads(int n) {
    atomic_store(&wanted, n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n);
}

static void take_chunks(pool *p) {
    for (;;) {
        int64_t chunk = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (chunk >= p->chunks)
            return;
        int64_t begin = chunk * p->grain;
        p->fn(p->ctx, begin, p->n - begin < p->grain ? p->n : begin + p->grain);
    }
}

static void *worker(void *arg) {
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (p->workers <= p->limit) {
        if (!p->open) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        p->active++;
        pthread_mutex_unlock(&p->lock);
        take_chunks(p);
        pthread_mutex_lock(&p->lock);
        p->open = 0;
        if (--p->active == 0)
            pthread_cond_signal(&p->idle);
    }
    p->workers--;
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static pool *new_pool(void) {
    pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->left_behind = left_behind;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
    atomic_init(&p->next, 0);
    return p;
}

/* With the lock held: as many workers as `limit` says, or as the system grants. */
static void grow(pool *p) {
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    while (p->workers < p->limit) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, worker, p) != 0)
            break;
        p->workers++;
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void run_region(pool *p, tpf_range fn, void *ctx, int64_t n, int64_t grain, int threads) {
    pthread_mutex_lock(&p->lock);
    if (p->limit != threads - 1) {
        p->limit = threads - 1;
        if (p->workers > p->limit)
            pthread_cond_broadcast(&p->work);
    }
    if (p->workers < p->limit)
        grow(p);
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->chunks = (n - 1) / grain + 1;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->open = 1;
    if (p->chunks > p->limit)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 1; i < p->chunks; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);

    take_chunks(p);

    pthread_mutex_lock(&p->lock);
    p->open = 0;
    while (p->active > 0)
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void tpf_parallel(tpf_range fn, void *ctx, int64_t n, int64_t grain) {
    int threads, free_ = 0;
    if (grain < 1)
        grain = 1;
    if (n <= grain || (threads = tpf_get_num_threads()) == 1) {
        run_inline(fn, ctx, n, grain);
        return;
    }
    pthread_once(&once, watch_forks); /* before busy is held: a child must not inherit it held */
    if (!atomic_compare_exchange_strong(&busy, &free_, 1)) {
        run_inline(fn, ctx, n, grain);
        return;
    }
    if (!the_pool)
        the_pool = new_pool();
    if (the_pool)
        run_region(the_pool, fn, ctx, n, grain, threads);
    else
        run_inline(fn, ctx, n, grain);
    atomic_store(&busy, 0);
}

#endif
