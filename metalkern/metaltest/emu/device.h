// What the generated part of a kernel file, the emulated device and Go say to
// each other. No other header: kernel code sees this file, and names such as
// exp must stay free.
#pragma once
typedef __UINT32_TYPE__ emu_u32;
typedef __UINT64_TYPE__ emu_u64;

struct emu_thread {  // what a thread of a dispatch knows
  void *const *buf;  // by index; 0 are the arguments
  void *shared;      // threadgroup memory
  emu_u32 group[3], groups[3], id, lane, simd;
};
struct emu_kernel {
  const char *name, *file;
  void (*run)(const emu_thread *);
  int nbuf;           // buffers with index 1..nbuf
  emu_u64 writes;     // bit i: buffer i is not const
  int shared;         // has threadgroup memory
  emu_u64 constants;  // bit i: the file has function constant i
};
struct emu_constant { int index; emu_u32 *at; };

// As metalkern.Dispatch and metalkern.Bind.
struct emu_dispatch {
  emu_u32 pipeline, barrier, groups[3], threads, binds, bind, args, arg_bytes, shared;
};
struct emu_bind { emu_u32 buffer, pad; emu_u64 off, len; };
struct emu_value { emu_u32 index, bits; };

extern "C" {
void emu_register(const emu_kernel *k, int kernels, const emu_constant *c, int constants);
struct emu_device;
emu_device *emu_open(int order, emu_u64 seed);
void emu_close(emu_device *);
emu_u32 emu_alloc(emu_device *, emu_u64 bytes, void **mem);
emu_u32 emu_wrap(emu_device *, const void *mem, emu_u64 bytes);
void emu_free(emu_device *, emu_u32 buffer);
emu_u32 emu_pipeline(emu_device *, const char *kernel, const emu_value *v, int n, char *err, int size);
int emu_run(emu_device *, const emu_dispatch *d, int n, const emu_bind *b, const char *args, char *err, int size);
emu_u64 emu_uses(emu_device *, emu_u32 pipeline);
}
