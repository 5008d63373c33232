// The C side of metalkern.Device on macOS. Structs as in device.go.
#pragma once
#include <stdint.h>

typedef struct { uint32_t pipeline, barrier, groups[3], threads, binds, bind, args, arg_bytes, shared; } mk_dispatch;
typedef struct { uint32_t buffer, pad; uint64_t off, len; } mk_bind;
typedef struct { uint32_t index, bits; } mk_constant;
typedef struct { uint32_t at, wait; uint64_t value; } mk_mark;
typedef struct mk_device mk_device;

// Functions that can fail return 0 and a text of at most size bytes in err.
// archive is the file that keeps compiled kernels between starts, NULL = none; one
// that is damaged, or another system's, counts as empty.
mk_device *mk_open(const char *archive, int *none, char *err, int size);  // *none: there is no GPU to use
void mk_close(mk_device *);
// mk_save writes the kernels that were compiled since the last save to a file.
int mk_save(mk_device *, const char *path, char *err, int size);
// mk_limit is how many bytes the GPU may use without trouble.
uint64_t mk_limit(mk_device *);
void mk_name(mk_device *, char *name, int size);
// mk_library compiles a kernel file for the given version of the language, such
// as 3 << 16 | 1; what it returns is for mk_pipeline.
uint32_t mk_library(mk_device *, const char *source, uint32_t version, char *err, int size);
uint32_t mk_pipeline(mk_device *, uint32_t library, const char *kernel, const mk_constant *c, int n, char *err, int size);
uint32_t mk_alloc(mk_device *, uint64_t bytes, void **mem);
// mk_wrap makes the pages around bytes that stay mapped known; off is where the
// bytes begin in the buffer.
uint32_t mk_wrap(mk_device *, const void *mem, uint64_t bytes, uint64_t *off);
void mk_free(mk_device *, uint32_t buffer);
// mk_submit encodes the list into one command buffer and commits it.
uint64_t mk_submit(mk_device *, const mk_dispatch *d, int n, const mk_bind *b, const char *args, const mk_mark *m, int marks, char *err, int size);
// mk_await waits for the mark with that value, but no longer than so many
// milliseconds: 1 = the GPU has come to it. mk_answer lets it go on. Any thread.
int mk_await(mk_device *, uint64_t value, uint64_t ms);
void mk_answer(mk_device *, uint64_t value);
// mk_wait waits for the end, but no longer than limit seconds, and says how long
// the GPU worked; 0 = it failed, MK_HUNG = it has not ended: the ticket stays.
enum { MK_HUNG = -1 };
// code is Metal's code of the error.
int mk_wait(mk_device *, uint64_t ticket, double limit, double *seconds, int *code, char *err, int size);
