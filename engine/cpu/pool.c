// The thread pool. A run is a list of ops; an op is a number of chunks that
// any thread may take; the thread that ends the last chunk of an op opens the
// next one, and runs ops of one chunk itself on the way. Ops that do not need each
// other are open together. So a thread that the system has not scheduled delays nobody, unless
// it holds a chunk.
#include "sb.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_NS = 50000, MAX_THREADS = 256 };

static inline void relax(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef struct {
	sb_pool *pool;
	pthread_t thread;
	uint8_t *scratch;
} worker;

struct sb_pool {
	sb_level level;
	int threads;
	int64_t scratch;
	worker w[MAX_THREADS];

	// The run: written by the thread that opens an op, before it publishes ticket.
	const sb_op *ops;
	int64_t n, at, end, chunks; // at to end: the ops that are open, and their chunks
	const int32_t *stop;
	int stopped;

	// ticket is (number of the op << 32 | chunks left to take). A thread takes a
	// chunk by counting it down; the number keeps a late thread from taking a
	// chunk of another op than it saw.
	uint64_t ticket __attribute__((aligned(64)));
	int64_t done __attribute__((aligned(64))); // chunks ended of the op
	int32_t idle __attribute__((aligned(64))); // 1: no run in progress
	int32_t sleepers, quit;
	pthread_mutex_t lock;
	pthread_cond_t wake;
};

static void wake_all(sb_pool *p) {
	if (__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST) == 0)
		return;
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

static int is_stopped(const sb_pool *p) { return p->stop && __atomic_load_n(p->stop, __ATOMIC_RELAXED) != 0; }

static void run_chunk(const sb_pool *p, const sb_op *op, int64_t chunk, uint8_t *scratch) {
	p->level.run[op->kind]((const void *)op->args, chunk, scratch);
}

static void finish(const sb_pool *p, const sb_op *op) {
	if (p->level.finish[op->kind])
		p->level.finish[op->kind]((const void *)op->args);
}

// Opens the next op, and those that may run with it; or ends the run. Small ops on
// the way are not worth telling the others.
static void advance(worker *w, int64_t at) {
	sb_pool *p = w->pool;
	uint64_t number = (__atomic_load_n(&p->ticket, __ATOMIC_RELAXED) >> 32) + 1;
	int64_t end = at, chunks = 0;
	for (;; at = end) {
		if (is_stopped(p))
			p->stopped = 1;
		if (p->stopped || at >= p->n) {
			__atomic_store_n(&p->ticket, number << 32, __ATOMIC_RELEASE);
			__atomic_store_n(&p->idle, 1, __ATOMIC_SEQ_CST);
			wake_all(p);
			return;
		}
		end = at + 1;
		chunks = p->ops[at].chunks;
		for (; end < p->n && p->ops[end].joined; end++)
			chunks += p->ops[end].chunks;
		if (chunks > 1)
			break;
		for (; at < end; at++)
			if (p->ops[at].chunks) {
				run_chunk(p, &p->ops[at], 0, w->scratch);
				finish(p, &p->ops[at]);
			}
	}
	p->at = at;
	p->end = end;
	p->chunks = chunks;
	__atomic_store_n(&p->done, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&p->ticket, number << 32 | (uint32_t)chunks, __ATOMIC_SEQ_CST);
	// From here on others may end this run and begin another: touch nothing of it.
	wake_all(p);
}

// Takes and runs one chunk; 0 when there is none.
static int work(worker *w) {
	sb_pool *p = w->pool;
	uint64_t t = __atomic_load_n(&p->ticket, __ATOMIC_ACQUIRE);
	do {
		if ((uint32_t)t == 0)
			return 0;
	} while (!__atomic_compare_exchange_n(&p->ticket, &t, t - 1, 1, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE));
	// From here to the end of the chunk the run cannot end: its fields, and the
	// scratch, are stable.
	const int64_t at = p->at, end = p->end, chunks = p->chunks;
	if (!is_stopped(p)) {
		const sb_op *op = &p->ops[at];
		int64_t chunk = chunks - (int64_t)(uint32_t)t;
		for (; chunk >= op->chunks; op++)
			chunk -= op->chunks;
		run_chunk(p, op, chunk, w->scratch);
	}
	if (__atomic_add_fetch(&p->done, 1, __ATOMIC_ACQ_REL) == chunks) {
		for (int64_t i = at; i < end && !is_stopped(p); i++)
			finish(p, &p->ops[i]);
		advance(w, end);
	}
	return 1;
}

static int has_work(sb_pool *p) { return (uint32_t)__atomic_load_n(&p->ticket, __ATOMIC_SEQ_CST) != 0; }

// Waits for a chunk, the end of the run (caller) or of the pool (worker).
static void wait_for_work(sb_pool *p, int caller) {
	int64_t t0 = now();
	for (int i = 1;; i++) {
		if (has_work(p) || __atomic_load_n(&p->quit, __ATOMIC_ACQUIRE) || (caller && __atomic_load_n(&p->idle, __ATOMIC_ACQUIRE)))
			return;
		relax();
		if (i % 64 == 0 && now() - t0 > SPIN_NS)
			break;
	}
	pthread_mutex_lock(&p->lock);
	__atomic_add_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
	while (!has_work(p) && !__atomic_load_n(&p->quit, __ATOMIC_SEQ_CST) && !(caller && __atomic_load_n(&p->idle, __ATOMIC_SEQ_CST)))
		pthread_cond_wait(&p->wake, &p->lock);
	__atomic_sub_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&p->lock);
}

static void *serve(void *arg) {
	worker *w = arg;
	sb_pool *p = w->pool;
	while (!__atomic_load_n(&p->quit, __ATOMIC_ACQUIRE))
		if (!work(w))
			wait_for_work(p, 0);
	return NULL;
}

sb_pool *sb_pool_new(const sb_level *level, int threads) {
	if (threads < 1 || threads > MAX_THREADS)
		return NULL;
	sb_pool *p = NULL;
	if (posix_memalign((void **)&p, 64, sizeof *p) != 0)
		return NULL;
	memset(p, 0, sizeof *p);
	p->level = *level;
	for (int i = 0; level->base && i < SB_KINDS; i++)
		if (!level->run[i]) {
			p->level.run[i] = level->base->run[i];
			p->level.finish[i] = level->base->finish[i];
		}
	p->threads = threads;
	p->idle = 1;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (int i = 0; i < threads; i++) {
		p->w[i].pool = p;
		if (i > 0 && pthread_create(&p->w[i].thread, NULL, serve, &p->w[i]) != 0) {
			p->threads = i;
			sb_pool_free(p);
			p = NULL;
			break;
		}
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return p;
}

void sb_pool_free(sb_pool *p) {
	pthread_mutex_lock(&p->lock);
	__atomic_store_n(&p->quit, 1, __ATOMIC_SEQ_CST);
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	for (int i = 1; i < p->threads; i++)
		pthread_join(p->w[i].thread, NULL);
	for (int i = 0; i < p->threads; i++)
		free(p->w[i].scratch);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

int sb_pool_scratch(sb_pool *p, int64_t bytes) {
	if (bytes <= p->scratch)
		return 1;
	bytes = (bytes + 4095) / 4096 * 4096;
	for (int i = 0; i < p->threads; i++) {
		void *m;
		if (posix_memalign(&m, 64, bytes) != 0)
			return 0;
		free(p->w[i].scratch);
		p->w[i].scratch = m;
	}
	p->scratch = bytes;
	return 1;
}

int sb_run(sb_pool *p, const sb_op *ops, int64_t n, const int32_t *stop) {
	p->ops = ops;
	p->n = n;
	p->stop = stop;
	p->stopped = 0;
	if (p->threads == 1) { // no pool: no other thread, so plain loops
		for (int64_t i = 0; i < n; i++) {
			for (int64_t c = 0; c < ops[i].chunks; c++) {
				if (is_stopped(p))
					return 1;
				run_chunk(p, &ops[i], c, p->w[0].scratch);
			}
			if (ops[i].chunks > 0)
				finish(p, &ops[i]);
		}
		return 0;
	}
	__atomic_store_n(&p->idle, 0, __ATOMIC_SEQ_CST);
	advance(&p->w[0], 0);
	while (!__atomic_load_n(&p->idle, __ATOMIC_ACQUIRE))
		if (!work(&p->w[0]))
			wait_for_work(p, 1);
	return p->stopped;
}
