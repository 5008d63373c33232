// The emulated device: runs compiled kernels on one thread of the CPU.
//
// A thread of a threadgroup is a fiber that is switched only where Metal's
// threads wait for each other: SIMD-group functions and barriers. A SIMD-group
// function is computed for all 32 lanes by the last one to come. Everything that
// Metal leaves open is chosen by the device's order: lanes, SIMD-groups,
// threadgroups, and dispatches between two barriers.
//
// With EMU_CHECKED the kernels were compiled so that every load and store calls
// the hooks at the end of this file, which refuse what is outside the bound
// view, unwritten threadgroup memory, and two threads that meet at a byte (one of
// them writing) without a barrier between them.
#include "device.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>
#define API extern "C" __attribute__((visibility("default")))

namespace {

// ---- fibers (x86-64) ----
extern "C" void emu_switch(void **save, void *load);
asm(".text\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");

constexpr size_t Page = 4096, Stack = 65536, Shared = 32768;
constexpr int MaxThreads = 1024, Lanes = 32, MaxBuffers = 31;

enum State { New, Ready, Simd, Barrier, Done };
struct Fiber {
  void *sp = nullptr;
  char *stack = nullptr;
  State state;
  int line;                  // where it waits
  void *operand;
  void (*combine)(void **);  // null: simdgroup_barrier
  emu_thread t;
};

// What last touched a byte.
struct Touch {
  emu_u64 span = 0;  // number of the stretch between two barriers of the list
  emu_u64 group = 0;
  emu_u32 thread = 0, epoch = 0, simd = 0, simdBarrier = 0;
};
struct Shadow { Touch wrote, read; };

struct Memory {
  char *map = nullptr, *data = nullptr;
  size_t mapped = 0, len = 0;
  bool wrapped = false;
  std::unique_ptr<Shadow[]> shadow;
};
struct Pipeline {
  const emu_kernel *kernel;
  std::vector<emu_value> values;
  emu_u64 uses = 0;
};
struct View { char *lo; size_t len; bool write; Memory *mem; int index; };

}  // namespace

struct emu_device {
  int order;
  emu_u64 seed;
  std::unordered_map<emu_u32, Memory> mem;
  emu_u32 next = 1;
  std::vector<Pipeline> pipes;

  // the threadgroup that runs
  Fiber fiber[MaxThreads];
  std::vector<char *> stacks;
  int n = 0, at = 0, lanes[Lanes];
  void *sched = nullptr;
  bool dead = false, combining = false;
  std::string err;
  void *buf[MaxBuffers + 1];
  const emu_kernel *kernel = nullptr;
  char *shared = nullptr;
  size_t sharedLen = 0;
  std::vector<View> views;
  size_t last = 0;  // view that was hit last
  emu_u64 span = 0, group = 0, rng = 0;
  emu_u32 epoch = 0, simdEpoch[MaxThreads / Lanes], simdBarriers[MaxThreads / Lanes];  // so many barriers and SIMD-group functions were passed
  std::vector<Shadow> sharedShadow;
};

namespace {

emu_device *D;
Fiber *cur;
// Go may destroy neither: the lists are never freed.
std::vector<const emu_kernel *> &kernels() { static auto *v = new std::vector<const emu_kernel *>; return *v; }
std::vector<const emu_constant *> &constants() { static auto *v = new std::vector<const emu_constant *>; return *v; }

std::string format(const char *f, ...) {
  char b[1024];
  va_list a;
  va_start(a, f);
  vsnprintf(b, sizeof b, f, a);
  va_end(a);
  return b;
}
void fail(const std::string &m) {
  if (D->dead) return;
  D->dead = true;
  D->err = format("%s (%s): ", D->kernel->name, D->kernel->file) + m;
}
std::string who(const Fiber &f) { return format("thread %u of threadgroup (%u,%u,%u)", f.t.id, f.t.group[0], f.t.group[1], f.t.group[2]); }

void toScheduler() { Fiber *f = cur; emu_switch(&f->sp, D->sched); }
[[noreturn]] void die(const std::string &m) { fail(m); for (;;) toScheduler(); }

[[noreturn]] void body() {
  Fiber *f = cur;
  D->kernel->run(&f->t);
  f->state = Done;
  for (;;) toScheduler();
}
void start(Fiber &f) {
  if (f.state == New) {
    if (D->stacks.empty()) {
      char *m = (char *)mmap(nullptr, Stack + Page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      mprotect(m, Page, PROT_NONE);
      D->stacks.push_back(m);
    }
    f.stack = D->stacks.back();
    D->stacks.pop_back();
    // lanes begin at different cache sets
    auto p = (void **)(((size_t)f.stack + Page + Stack - f.t.lane * 192) & ~size_t(15));
    *--p = nullptr;
    *--p = (void *)body;
    for (int i = 0; i < 6; i++) *--p = nullptr;
    f.sp = p;
  }
  f.state = Ready;
  cur = &f;
}
// Hands over to the next lane of the SIMD-group that can run, or to the scheduler.
void yield() {
  Fiber *me = cur;
  int base = me->t.simd * Lanes;
  while (!D->dead && ++D->at < Lanes) {
    Fiber &f = D->fiber[base + D->lanes[D->at]];
    if (f.state != New && f.state != Ready) continue;
    start(f);
    emu_switch(&me->sp, f.sp);
    return;
  }
  toScheduler();
}
emu_u64 random() { D->rng ^= D->rng << 13; D->rng ^= D->rng >> 7; D->rng ^= D->rng << 17; return D->rng; }
template <class T> void arrange(T *p, emu_u32 n) {
  for (emu_u32 i = 0; i < n; i++) p[i] = T(D->order == 1 ? n - 1 - i : i);
  if (D->order == 2)
    for (emu_u32 i = n; i > 1; i--) std::swap(p[i - 1], p[random() % i]);
}

// Runs one threadgroup.
void runGroup(const emu_dispatch &d, const emu_u32 *pos) {
  D->n = int(d.threads);
  D->group++;
  D->epoch = 0;
  memset(D->simdEpoch, 0, sizeof D->simdEpoch);
  memset(D->simdBarriers, 0, sizeof D->simdBarriers);
  memset(D->shared, 0xFF, D->sharedLen);
  if (!D->sharedShadow.empty()) std::fill(D->sharedShadow.begin(), D->sharedShadow.end(), Shadow());
  for (int i = 0; i < D->n; i++) {
    Fiber &f = D->fiber[i];
    f.state = New;
    f.t = {D->buf, D->shared, {pos[0], pos[1], pos[2]}, {d.groups[0], d.groups[1], d.groups[2]}, emu_u32(i), emu_u32(i % Lanes), emu_u32(i / Lanes)};
  }
  int simds[MaxThreads / Lanes], nsimd = D->n / Lanes, done = 0;
  arrange(simds, nsimd);
  while (!D->dead) {
    bool ran = false;
    for (int s = 0; s < nsimd && !D->dead; s++) {
      Fiber *base = D->fiber + simds[s] * Lanes;
      for (bool again = true; again && !D->dead;) {
        again = false;
        arrange(D->lanes, Lanes);
        for (D->at = 0; D->at < Lanes && !D->dead; D->at++) {
          Fiber &f = base[D->lanes[D->at]];
          if (f.state != New && f.state != Ready) continue;
          again = ran = true;
          start(f);
          emu_switch(&D->sched, f.sp);
        }
      }
      for (int i = 0; i < Lanes; i++)
        if (base[i].state == Done && base[i].stack) {
          D->stacks.push_back(base[i].stack);
          base[i].stack = nullptr;
          done++;
        }
    }
    if (done == D->n || D->dead) break;
    if (ran) continue;
    Fiber *first = nullptr;
    for (int i = 0; i < D->n && !D->dead; i++) {
      Fiber &f = D->fiber[i];
      if (f.state == Simd) fail(format("line %d: %s waits in a SIMD-group function that other lanes do not reach", f.line, who(f).c_str()));
      if (f.state != Barrier) continue;
      if (!first) first = &f;
      if (f.line != first->line) fail(format("%s is at the barrier of line %d, %s at that of line %d", who(*first).c_str(), first->line, who(f).c_str(), f.line));
    }
    if (done && !D->dead) fail(format("line %d: %d of %d threads returned before the barrier", first->line, done, D->n));
    if (D->dead) break;
    for (int i = 0; i < D->n; i++) D->fiber[i].state = Ready;
    D->epoch++;
  }
  for (int i = 0; i < D->n; i++)
    if (D->fiber[i].stack) {
      D->stacks.push_back(D->fiber[i].stack);
      D->fiber[i].stack = nullptr;
    }
}

}  // namespace

void emu_register(const emu_kernel *k, int nk, const emu_constant *c, int nc) {
  for (int i = 0; i < nk; i++) kernels().push_back(k + i);
  for (int i = 0; i < nc; i++) constants().push_back(c + i);
}

// ---- called by kernels ----
extern "C" int emu_lane() { return int(cur->t.lane); }
extern "C" void emu_simd(void *operand, void (*combine)(void **), int line) {
  Fiber *me = cur;
  me->line = line, me->operand = operand, me->combine = combine, me->state = Simd;
  Fiber *base = D->fiber + me->t.simd * Lanes;
  void *ops[Lanes];
  for (int i = 0; i < Lanes; i++) {
    if (base[i].state != Simd) return yield();
    ops[i] = base[i].operand;
  }
  for (int i = 0; i < Lanes; i++)
    if (base[i].combine != combine || base[i].line != line) die(format("lane %d is at line %d, lane %u at line %d", i, base[i].line, me->t.lane, line));
  for (int i = 0; i < Lanes; i++) base[i].state = Ready;
  D->simdEpoch[me->t.simd]++;
  if (!combine) D->simdBarriers[me->t.simd]++;
  D->combining = true;
  if (combine) combine(ops);
  D->combining = false;
}
extern "C" void emu_simd_barrier(int line) {
  emu_simd(nullptr, nullptr, line);
}
extern "C" void emu_barrier(int line) {
  cur->line = line;
  cur->state = Barrier;
  yield();
}

// ---- called by Go ----
API emu_device *emu_open(int order, emu_u64 seed) {
  auto d = new emu_device;
  d->order = order;
  d->seed = seed * 2 + 1;
  d->shared = (char *)mmap(nullptr, Shared + 2 * Page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ;
  d->shared += Page;
  mprotect(d->shared, Shared, PROT_READ | PROT_WRITE);
  return d;
}
API void emu_close(emu_device *d) {
  for (auto &m : d->mem)
    if (m.second.map) munmap(m.second.map, m.second.mapped);
  for (char *s : d->stacks) munmap(s, Stack + Page);
  munmap(d->shared - Page, Shared + 2 * Page);
  delete d;
}
API emu_u32 emu_alloc(emu_device *d, emu_u64 bytes, void **mem) {
  Memory m;
  m.len = bytes;
  size_t body = (bytes + Page - 1) / Page * Page;
  m.mapped = body + 2 * Page;
  m.map = (char *)mmap(nullptr, m.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m.map == MAP_FAILED) return 0;
  mprotect(m.map + Page, body, PROT_READ | PROT_WRITE);
  m.data = m.map + Page + (body - (bytes + 15) / 16 * 16);  // the end lies at the guard page
  *mem = m.data;
  d->mem[d->next] = std::move(m);
  return d->next++;
}
API emu_u32 emu_wrap(emu_device *d, const void *p, emu_u64 bytes) {
  Memory m;
  m.data = (char *)p, m.len = bytes, m.wrapped = true;
  d->mem[d->next] = std::move(m);
  return d->next++;
}
API void emu_free(emu_device *d, emu_u32 id) {
  auto m = d->mem.find(id);
  if (m == d->mem.end()) return;
  if (m->second.map) munmap(m->second.map, m->second.mapped);
  d->mem.erase(m);
}
static int report(const std::string &m, char *err, int size) { snprintf(err, size_t(size), "%s", m.c_str()); return 0; }
API emu_u32 emu_pipeline(emu_device *d, const char *name, const emu_value *v, int n, char *err, int size) {
  for (auto k : kernels()) {
    if (strcmp(k->name, name)) continue;
    for (int i = 0; i < n; i++)
      if (!(k->constants >> v[i].index & 1)) return report(format("%s: the file has no function constant %u", name, v[i].index), err, size), 0;
    d->pipes.push_back({k, {v, v + n}});
    return emu_u32(d->pipes.size());
  }
  return report(format("no kernel is called %s", name), err, size), 0;
}
API emu_u64 emu_uses(emu_device *d, emu_u32 p) { return p && p <= d->pipes.size() ? d->pipes[p - 1].uses : 0; }

static void runDispatch(emu_device *d, const emu_dispatch &x, const emu_bind *binds, const char *args) {
  Pipeline &p = d->pipes[x.pipeline - 1];
  const emu_kernel *k = d->kernel = p.kernel;
  p.uses++;
  if (!x.groups[0] || !x.groups[1] || !x.groups[2] || !x.threads || x.threads % Lanes || x.threads > MaxThreads)
    return fail(format("grid of %ux%ux%u threadgroups of %u threads", x.groups[0], x.groups[1], x.groups[2], x.threads));
  if (x.shared % 16 || x.shared > Shared || (x.shared != 0) != (k->shared != 0)) return fail(format("%u bytes of threadgroup memory", x.shared));
  if (int(x.binds) != k->nbuf) return fail(format("%u buffers are bound, it has %d", x.binds, k->nbuf));
  if (x.args % 16 || x.arg_bytes > 4096) return fail("arguments of 4096 bytes at most must be aligned to 16");
  for (auto c : constants()) *c->at = 0xFFFFFFFF;
  for (auto &v : p.values)
    for (auto c : constants())
      if (c->index == int(v.index)) *c->at = v.bits;
  std::vector<char> copy(args + x.args, args + x.args + x.arg_bytes);
  d->buf[0] = copy.data();
  d->views.clear();
  d->last = 0;
  d->views.push_back({copy.data(), copy.size(), false, nullptr, 0});
  for (emu_u32 i = 0; i < x.binds; i++) {
    const emu_bind &b = binds[x.bind + i];
    if (!b.buffer) { d->buf[i + 1] = nullptr; continue; }
    auto m = d->mem.find(b.buffer);
    if (m == d->mem.end()) return fail(format("buffer %u was freed", i + 1));
    bool write = k->writes >> (i + 1) & 1;
    if (b.off > m->second.len || b.len > m->second.len - b.off) return fail(format("buffer %u: bytes %llu to %llu of %zu are bound", i + 1, (unsigned long long)b.off, (unsigned long long)(b.off + b.len), m->second.len));
    if (b.off % 2 && !m->second.wrapped) return fail(format("buffer %u: offset %llu", i + 1, (unsigned long long)b.off));
    d->buf[i + 1] = m->second.data + b.off;
    d->views.push_back({m->second.data + b.off, b.len, write, &m->second, int(i + 1)});
  }
  d->sharedLen = x.shared;
#ifdef EMU_CHECKED
  d->sharedShadow.assign(x.shared, Shadow());
#endif
  emu_u32 groups = x.groups[0] * x.groups[1] * x.groups[2];
  std::vector<emu_u32> order(groups);
  arrange(order.data(), groups);
  for (emu_u32 i = 0; i < groups && !d->dead; i++) {
    emu_u32 g = order[i], pos[3] = {g % x.groups[0], g / x.groups[0] % x.groups[1], g / x.groups[0] / x.groups[1]};
    runGroup(x, pos);
  }
}
API int emu_run(emu_device *d, const emu_dispatch *list, int n, const emu_bind *binds, const char *args, char *err, int size) {
  D = d;
  d->dead = false;
  d->err.clear();
  d->rng = d->seed * 0x9E3779B97F4A7C15ull;
  static const emu_kernel none = {"dispatch list", "host", nullptr, 0, 0, 0, 0};
  for (int from = 0; from < n && !d->dead;) {
    int to = from + 1;
    while (to < n && !list[to].barrier) to++;
    d->span++;
    std::vector<emu_u32> order(size_t(to - from));
    arrange(order.data(), emu_u32(to - from));
    for (emu_u32 i : order) {
      if (d->dead) break;
      const emu_dispatch &x = list[from + int(i)];
      d->kernel = &none;
      if (!x.pipeline || x.pipeline > d->pipes.size()) fail(format("dispatch %d has no pipeline", from + int(i)));
      else runDispatch(d, x, binds, args);
    }
    from = to;
  }
  if (d->dead) report(d->err, err, size);
  return d->dead;
}

#ifdef EMU_CHECKED
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;  // this library in memory, its tables among it

// Reports whether thread f's access must be ordered after t and is not: a
// barrier of the threadgroup orders all, one of the SIMD-group its lanes, and a
// SIMD-group function the lanes' reads before their later writes.
static bool unordered(const Touch &t, const Fiber &f, bool shared, bool wasRead) {
  if (!t.group || (!shared && t.span != D->span)) return false;
  if (t.group != D->group) return !shared;
  if (t.thread == f.t.id || t.epoch != D->epoch) return false;
  if (t.thread / Lanes != f.t.simd) return true;
  return t.simdBarrier == D->simdBarriers[f.t.simd] && !(wasRead && t.simd != D->simdEpoch[f.t.simd]);
}
static void touch(Shadow &s, const Fiber &f, bool write, const View *v, size_t at) {
  Touch now{D->span, D->group, f.t.id, D->epoch, D->simdEpoch[f.t.simd], D->simdBarriers[f.t.simd]};
  bool afterWrite = unordered(s.wrote, f, !v, false);
  if (afterWrite || (write && unordered(s.read, f, !v, true)))
    die(format("race: %s %s byte %zu of %s %d, which thread %u of %s threadgroup %s without a barrier between", who(f).c_str(), write ? "writes" : "reads", at,
               v ? "buffer" : "threadgroup memory", v ? v->index : 0, (afterWrite ? s.wrote : s.read).thread, (afterWrite ? s.wrote : s.read).group == D->group ? "this" : "another", afterWrite ? "wrote" : "read"));
  if (write) s.wrote = now;
  else s.read = now;
}
static void access(const void *at, size_t n, bool write) {
  char *p = (char *)at;
  Fiber *f = cur;
  if (!D || D->dead || !f || D->combining || size_t(p - f->stack) < Page + Stack) return;
  if (size_t(p - D->shared) < Shared) {
    size_t off = size_t(p - D->shared);
    if (off + n > D->sharedLen) die(format("%s touches byte %zu of %zu of threadgroup memory", who(*f).c_str(), off, D->sharedLen));
    for (size_t i = off; i < off + n; i++) {
      if (!write && !D->sharedShadow[i].wrote.group) die(format("%s reads byte %zu of threadgroup memory, which nobody wrote", who(*f).c_str(), i));
      touch(D->sharedShadow[i], *f, write, nullptr, i);
    }
    return;
  }
  for (size_t v = 0; v < D->views.size(); v++) {
    size_t i = (D->last + v) % D->views.size();
    const View &w = D->views[i];
    size_t off = size_t(p - w.lo);
    if (off >= w.len || off + n > w.len || (write && !w.write)) continue;
    D->last = i;
    if (!w.mem || w.mem->wrapped) return;
    if (!w.mem->shadow) w.mem->shadow.reset(new Shadow[w.mem->len]);
    for (size_t i = 0; i < n; i++) touch(w.mem->shadow[size_t(p - w.mem->data) + i], *f, write, &w, off + i);
    return;
  }
  if (!write && ((p >= &__ehdr_start && p < &_end) || size_t(p - (char *)D) < sizeof *D)) return;
  for (const View &w : D->views) {
    ptrdiff_t off = p - w.lo;
    if (off > -(1 << 20) && off < ptrdiff_t(w.len) + (1 << 20)) die(format("%s %s byte %td of buffer %d, a view of %zu bytes%s", who(*f).c_str(), write ? "writes" : "reads", off, w.index, w.len, write && !w.write ? " that is const" : ""));
  }
  die(format("%s %s address %p, which is in no buffer", who(*f).c_str(), write ? "writes" : "reads", at));
}
#define HOOK(n) \
  extern "C" void __sanitizer_cov_load##n(void *p) { access(p, n, false); } \
  extern "C" void __sanitizer_cov_store##n(void *p) { access(p, n, true); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
#endif
