// Device on Metal. Reference counts are by hand, as in the rest of the program;
// tables of objects are plain arrays, because ids are small numbers.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include "bridge_darwin.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { id *at; uint32_t n, cap; } table;

struct mk_device {
  id<MTLDevice> dev;
  id<MTLCommandQueue> queue;
  id<MTLSharedEvent> ended; // its value is that of the last list that has ended
  uint64_t lists;
  int met;                            // the last list had marks
  id<MTLSharedEvent> asked, answered; // the meetings with the CPU: only the GPU sets the one, only the CPU the other
  id<MTLBinaryArchive> archive; // compiled kernels; nil: they are not kept
  int fresh;                    // kernels that were added to it
  id<MTLBuffer> none; // what is bound where a kernel has no use for a buffer
  table libraries, pipelines, buffers, running;
};

static int fail(char *err, int size, NSString *text) {
  const char *s = text ? [text UTF8String] : NULL;
  strlcpy(err, s ? s : "unknown error", (size_t)size);
  return 0;
}

// put keeps an object that the caller retained and returns its id, from 1 on.
static uint32_t put(table *t, id x) {
  for (uint32_t i = 0; i < t->n; i++)
    if (!t->at[i]) { t->at[i] = x; return i + 1; }
  if (t->n == t->cap) {
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    id *at = realloc(t->at, cap * sizeof(id));
    if (!at) { [x release]; return 0; }
    t->at = at, t->cap = cap;
  }
  t->at[t->n++] = x;
  return t->n;
}
static id get(table *t, uint64_t i) { return i && i <= t->n ? t->at[i - 1] : nil; }
static void drop(table *t, uint64_t i) {
  if (!get(t, i)) return;
  [t->at[i - 1] release];
  t->at[i - 1] = nil;
}
static void clear_table(table *t) {
  for (uint32_t i = 0; i < t->n; i++) [t->at[i] release];
  free(t->at);
}

// open_archive reads compiled kernels, or begins anew.
static id<MTLBinaryArchive> open_archive(id<MTLDevice> dev, const char *path) {
  MTLBinaryArchiveDescriptor *x = [[[MTLBinaryArchiveDescriptor alloc] init] autorelease];
  NSError *e = nil;
  id<MTLBinaryArchive> a = nil;
  if (access(path, R_OK) == 0) {
    [x setUrl:[NSURL fileURLWithPath:[NSString stringWithUTF8String:path]]];
    a = [dev newBinaryArchiveWithDescriptor:x error:&e];
    if (!a) unlink(path);
  }
  [x setUrl:nil];
  return a ? a : [dev newBinaryArchiveWithDescriptor:x error:&e];
}

mk_device *mk_open(const char *archive, int *none, char *err, int size) {
  @autoreleasepool {
    id<MTLDevice> dev = MTLCreateSystemDefaultDevice();
    *none = !dev || ![dev supportsFamily:MTLGPUFamilyApple7];
    if (!dev) return (void *)(intptr_t)fail(err, size, @"this machine has no Metal device");
    if (*none) {
      fail(err, size, @"the GPU is older than M1");
      [dev release];
      return NULL;
    }
    mk_device *d = calloc(1, sizeof *d);
    d->dev = dev;
    d->queue = [dev newCommandQueue];
    d->ended = [dev newSharedEvent];
    d->asked = [dev newSharedEvent];
    d->answered = [dev newSharedEvent];
    if (archive) d->archive = open_archive(dev, archive);
    d->none = [dev newBufferWithLength:256 options:MTLResourceStorageModeShared];
    if (!d->queue || !d->ended || !d->asked || !d->answered || !d->none) {
      fail(err, size, @"the Metal device has no command queue");
      mk_close(d);
      return NULL;
    }
    return d;
  }
}

void mk_close(mk_device *d) {
  @autoreleasepool {
    clear_table(&d->running);
    clear_table(&d->buffers);
    clear_table(&d->pipelines);
    clear_table(&d->libraries);
    [d->none release];
    [d->ended release];
    [d->asked release];
    [d->answered release];
    [d->archive release];
    [d->queue release];
    [d->dev release];
    free(d);
  }
}

void mk_name(mk_device *d, char *name, int size) {
  @autoreleasepool { fail(name, size, [d->dev name]); }
}

int mk_save(mk_device *d, const char *path, char *err, int size) {
  @autoreleasepool {
    if (!d->archive || !d->fresh) return 1;
    NSError *e = nil;
    d->fresh = 0;
    if ([d->archive serializeToURL:[NSURL fileURLWithPath:[NSString stringWithUTF8String:path]] error:&e]) return 1;
    return fail(err, size, [e localizedDescription]);
  }
}

uint64_t mk_limit(mk_device *d) { return [d->dev recommendedMaxWorkingSetSize]; }

uint32_t mk_library(mk_device *d, const char *source, uint32_t version, char *err, int size) {
  @autoreleasepool {
    MTLCompileOptions *o = [[[MTLCompileOptions alloc] init] autorelease];
    [o setLanguageVersion:(MTLLanguageVersion)version];
    [o setFastMathEnabled:NO]; // NaN and infinity mean something, and exp must be exact to the last bits
    NSError *e = nil;
    id<MTLLibrary> l = [d->dev newLibraryWithSource:[NSString stringWithUTF8String:source] options:o error:&e];
    return l ? put(&d->libraries, l) : (uint32_t)fail(err, size, [e localizedDescription]);
  }
}

uint32_t mk_pipeline(mk_device *d, uint32_t library, const char *kernel, const mk_constant *c, int n, char *err, int size) {
  @autoreleasepool {
    MTLFunctionConstantValues *values = [[[MTLFunctionConstantValues alloc] init] autorelease];
    for (int i = 0; i < n; i++) [values setConstantValue:&c[i].bits type:MTLDataTypeUInt atIndex:c[i].index];
    NSError *e = nil;
    id<MTLLibrary> l = get(&d->libraries, library);
    id<MTLFunction> f = [l newFunctionWithName:[NSString stringWithUTF8String:kernel] constantValues:values error:&e];
    if (!f) return (uint32_t)fail(err, size, [e localizedDescription]);
    MTLComputePipelineDescriptor *x = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
    [x setComputeFunction:f];
    [f release];
    id<MTLComputePipelineState> p = nil;
    if (d->archive) {
      [x setBinaryArchives:[NSArray arrayWithObject:d->archive]];
      p = [d->dev newComputePipelineStateWithDescriptor:x options:MTLPipelineOptionFailOnBinaryArchiveMiss reflection:NULL error:&e];
      if (!p) {
        [x setBinaryArchives:nil];
        if ([d->archive addComputePipelineFunctionsWithDescriptor:x error:&e]) d->fresh++;
      }
    }
    if (!p) p = [d->dev newComputePipelineStateWithDescriptor:x options:MTLPipelineOptionNone reflection:NULL error:&e];
    return p ? put(&d->pipelines, p) : (uint32_t)fail(err, size, [e localizedDescription]);
  }
}

uint32_t mk_alloc(mk_device *d, uint64_t bytes, void **mem) {
  @autoreleasepool {
    id<MTLBuffer> b = [d->dev newBufferWithLength:(NSUInteger)bytes options:MTLResourceStorageModeShared];
    if (!b) return 0;
    *mem = [b contents];
    memset(*mem, 0, (size_t)bytes);
    return put(&d->buffers, b);
  }
}

uint32_t mk_wrap(mk_device *d, const void *mem, uint64_t bytes, uint64_t *off) {
  @autoreleasepool {
    uintptr_t page = (uintptr_t)getpagesize(), from = (uintptr_t)mem & ~(page - 1);
    uintptr_t to = ((uintptr_t)mem + (uintptr_t)bytes + page - 1) & ~(page - 1);
    *off = (uintptr_t)mem - from;
    id<MTLBuffer> b = [d->dev newBufferWithBytesNoCopy:(void *)from length:to - from options:MTLResourceStorageModeShared deallocator:nil];
    return b ? put(&d->buffers, b) : 0;
  }
}

void mk_free(mk_device *d, uint32_t buffer) { drop(&d->buffers, buffer); }

uint64_t mk_submit(mk_device *d, const mk_dispatch *list, int n, const mk_bind *binds, const char *args, const mk_mark *marks, int nmarks, char *err, int size) {
  @autoreleasepool {
    id<MTLCommandBuffer> cb = [d->queue commandBuffer];
    id<MTLComputeCommandEncoder> enc = nil; // the open one
    NSString *bad = cb ? nil : @"no command buffer";
    uint32_t now = 0;
    int mark = 0;
    // The system keeps the GPU's own accesses in order between command buffers, but knows
    // nothing of the CPU's.
    if ((nmarks || d->met) && d->lists) [cb encodeWaitForEvent:d->ended value:d->lists];
    for (int i = 0; i <= n && !bad; i++) {
      // Events stand between encoders. What a later encoder touches waits for what an
      // earlier one did to it: the buffers are tracked.
      for (; mark < nmarks && marks[mark].at == (uint32_t)i; mark++) {
        [enc endEncoding];
        enc = nil;
        if (marks[mark].wait) [cb encodeWaitForEvent:d->answered value:marks[mark].value];
        else [cb encodeSignalEvent:d->asked value:marks[mark].value];
      }
      if (i == n) break;
      if (!enc) {
        enc = [cb computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        now = 0;
        if (!enc) { bad = @"no command encoder"; break; }
      }
      const mk_dispatch *x = list + i;
      if (x->barrier) [enc memoryBarrierWithScope:MTLBarrierScopeBuffers];
      id<MTLComputePipelineState> p = get(&d->pipelines, x->pipeline);
      if (!p) { bad = @"a dispatch has no pipeline"; break; }
      if (x->threads > [p maxTotalThreadsPerThreadgroup]) { bad = @"the GPU has too few registers for a kernel's threadgroups"; break; }
      if (x->pipeline != now) [enc setComputePipelineState:p];
      now = x->pipeline;
      [enc setBytes:args + x->args length:x->arg_bytes atIndex:0];
      for (uint32_t j = 0; j < x->binds; j++) {
        const mk_bind *b = binds + x->bind + j;
        id<MTLBuffer> m = b->buffer ? get(&d->buffers, b->buffer) : d->none;
        if (!m) { bad = @"a dispatch uses memory that was freed"; break; }
        [enc setBuffer:m offset:b->buffer ? (NSUInteger)b->off : 0 atIndex:j + 1];
      }
      if (x->shared) [enc setThreadgroupMemoryLength:x->shared atIndex:0];
      MTLSize grid = {x->groups[0], x->groups[1], x->groups[2]}, threads = {x->threads, 1, 1};
      if (!bad) [enc dispatchThreadgroups:grid threadsPerThreadgroup:threads];
    }
    [enc endEncoding];
    if (bad) return (uint64_t)fail(err, size, bad); // the command buffer goes uncommitted
    d->met = nmarks > 0;
    [cb encodeSignalEvent:d->ended value:++d->lists];
    [cb commit];
    uint64_t at = put(&d->running, [cb retain]);
    return at ? d->lists << 16 | at : (uint64_t)fail(err, size, @"no memory");
  }
}

int mk_await(mk_device *d, uint64_t value, uint64_t ms) {
  @autoreleasepool { return [d->asked waitUntilSignaledValue:value timeoutMS:ms]; }
}

void mk_answer(mk_device *d, uint64_t value) {
  @autoreleasepool { [d->answered setSignaledValue:value]; }
}

int mk_wait(mk_device *d, uint64_t ticket, double limit, double *seconds, int *code, char *err, int size) {
  @autoreleasepool {
    uint64_t at = ticket & 0xffff;
    id<MTLCommandBuffer> cb = get(&d->running, at);
    if (!cb) return fail(err, size, @"no such command buffer");
    // A command buffer that fails may end without its signal: ask for its state too.
    const uint64_t slice = 50;
    for (double waited = 0; ![d->ended waitUntilSignaledValue:ticket >> 16 timeoutMS:slice] && [cb status] < MTLCommandBufferStatusCompleted;)
      if ((waited += slice / 1e3) >= limit) return MK_HUNG;
    [cb waitUntilCompleted];
    *seconds = [cb GPUEndTime] - [cb GPUStartTime];
    int ok = [cb status] == MTLCommandBufferStatusCompleted;
    *code = ok ? 0 : (int)[[cb error] code];
    // the next list may wait for a signal that did not come
    if (!ok && [d->ended signaledValue] < ticket >> 16) [d->ended setSignaledValue:ticket >> 16];
    if (!ok) fail(err, size, [cb error] ? [[cb error] localizedDescription] : @"the command buffer did not complete");
    drop(&d->running, at);
    return ok;
  }
}
