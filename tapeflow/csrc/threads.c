/* One pool of threads for the process.

   A region is one tpf_parallel call: chunks of a range, taken from an atomic counter by the caller
   and by every worker that comes in time. Invariants:
   - chunks begin at multiples of grain, also when they run inline, so a kernel may rely on them;
   - `busy` is held for the whole region: nobody else touches the pool, and a nested call or a
     second caller, finding it taken, runs its own range inline (no deadlock is possible);
   - `state` is OPEN while there may be chunks that nobody has taken, plus the number of workers
     inside. A worker comes in only while it is OPEN; the caller closes it and waits until it is 0.
     It never waits for a worker that has not come in;
   - a worker without work looks for more for SPIN seconds, giving its core away between looks, and then
     sleeps. Waking one costs microseconds, so a light region does so only where the one before it
     has just ended, and else takes who is awake;
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

void tpf_parallel_light(tpf_range fn, void *ctx, int64_t n, int64_t grain) { tpf_parallel(fn, ctx, n, grain); }
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

#define OPEN (1 << 30)
#define SPIN 200e-6   /* seconds that a worker looks for work before it sleeps */
#define RECENT 150e-6 /* seconds after a light region in which another one is likely to follow */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    atomic_int workers;  /* threads that exist; changed with the lock held */
    atomic_int limit;    /* threads that should; one that finds more of them than this exits */
    atomic_int state;    /* OPEN, and the workers inside the region */
    atomic_int looking;  /* workers that are awake, without work */
    atomic_int sleeping; /* workers that are not */
    atomic_int waiting;  /* the caller sleeps until the last worker has left */
    double spin;         /* seconds; 0 with more threads than processors */
    double last;         /* when the last light region ended */
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

static void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int is_open(pool *p) { return atomic_load(&p->state) & OPEN; }
static int is_empty(pool *p) { return atomic_load(&p->state) == 0; }
static int is_called_off(pool *p) { return atomic_load(&p->workers) > atomic_load(&p->limit); }

/* Looks for up to p->spin seconds whether it holds, or nobody wants this thread any more. */
static int comes_true(pool *p, int (*condition)(pool *)) {
    double until = 0;
    for (;;) {
        for (int i = 0; i < 100; i++) {
            if (condition(p))
                return 1;
            rest();
        }
        double time = tpf_clock();
        if (until == 0)
            until = time + p->spin;
        if (time >= until)
            return 0;
        sched_yield();
    }
}

/* Into an open region, for its chunks, and out again. */
static void visit(pool *p) {
    int state = atomic_load(&p->state);
    while (state & OPEN)
        if (atomic_compare_exchange_weak(&p->state, &state, state + 1)) {
            take_chunks(p);
            atomic_fetch_and(&p->state, ~OPEN);
            if (atomic_fetch_sub(&p->state, 1) == 1 && atomic_load(&p->waiting)) {
                pthread_mutex_lock(&p->lock);
                pthread_cond_signal(&p->idle);
                pthread_mutex_unlock(&p->lock);
            }
            return;
        }
}

static int wanted_elsewhere(pool *p) { return is_open(p) || is_called_off(p); }

static void *worker(void *arg) {
    pool *p = arg;
    for (;;) {
        visit(p);
        atomic_fetch_add(&p->looking, 1);
        int found = comes_true(p, wanted_elsewhere);
        atomic_fetch_sub(&p->looking, 1);
        if (found && !is_called_off(p))
            continue;
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleeping, 1);
        while (!wanted_elsewhere(p))
            pthread_cond_wait(&p->work, &p->lock);
        atomic_fetch_sub(&p->sleeping, 1);
        if (is_called_off(p)) {
            atomic_fetch_sub(&p->workers, 1);
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        pthread_mutex_unlock(&p->lock);
    }
}

static pool *new_pool(void) {
    pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->left_behind = left_behind;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
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
    while (atomic_load(&p->workers) < atomic_load(&p->limit)) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, worker, p) != 0)
            break;
        atomic_fetch_add(&p->workers, 1);
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void resize(pool *p, int threads) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->limit, threads - 1);
    p->spin = threads <= usable_cpus() ? SPIN : 0;
    if (is_called_off(p))
        pthread_cond_broadcast(&p->work);
    else
        grow(p);
    pthread_mutex_unlock(&p->lock);
}

static void run_region(pool *p, tpf_range fn, void *ctx, int64_t n, int64_t grain, int wake) {
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->chunks = (n - 1) / grain + 1;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->state, OPEN);
    if (wake && atomic_load(&p->sleeping) > 0) {
        int64_t awake = atomic_load(&p->looking);
        pthread_mutex_lock(&p->lock);
        if (p->chunks > atomic_load(&p->workers))
            pthread_cond_broadcast(&p->work);
        else
            for (int64_t i = 1 + awake; i < p->chunks; i++)
                pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
    }

    take_chunks(p);

    atomic_fetch_and(&p->state, ~OPEN);
    if (comes_true(p, is_empty))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, 1);
    while (!is_empty(p))
        pthread_cond_wait(&p->idle, &p->lock);
    atomic_store(&p->waiting, 0);
    pthread_mutex_unlock(&p->lock);
}

/* Whether a light region is to be shared: with workers that are awake, or once light ones follow each other. */
static int is_worth_sharing(pool *p) {
    return atomic_load(&p->looking) > 0 || tpf_clock() - p->last < RECENT;
}

static void run(tpf_range fn, void *ctx, int64_t n, int64_t grain, int light) {
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
    pool *p = the_pool;
    if (!p)
        p = the_pool = new_pool();
    if (p && atomic_load(&p->limit) != threads - 1)
        resize(p, threads);
    if (p && (!light || is_worth_sharing(p)))
        run_region(p, fn, ctx, n, grain, !light || atomic_load(&p->looking) == 0);
    else
        run_inline(fn, ctx, n, grain);
    if (p && light)
        p->last = tpf_clock();
    atomic_store(&busy, 0);
}

void tpf_parallel(tpf_range fn, void *ctx, int64_t n, int64_t grain) { run(fn, ctx, n, grain, 0); }
void tpf_parallel_light(tpf_range fn, void *ctx, int64_t n, int64_t grain) { run(fn, ctx, n, grain, 1); }

#endif
