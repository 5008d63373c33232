// What metalkern uses of Metal. Each declaration is that of Apple's page below
// https://developer.apple.com/documentation/metal/ under its name.
#pragma once
#import <Foundation/Foundation.h>

typedef NSUInteger MTLResourceOptions; // mtlresourceoptions
enum { MTLResourceStorageModeShared = 0 };
typedef NSUInteger MTLLanguageVersion; // mtllanguageversion: major << 16 | minor
typedef NSUInteger MTLDataType;        // mtldatatype
enum { MTLDataTypeUInt = 33 };
typedef NSInteger MTLGPUFamily; // mtlgpufamily
enum { MTLGPUFamilyApple7 = 1007 };
typedef NSUInteger MTLDispatchType; // mtldispatchtype
enum { MTLDispatchTypeConcurrent = 1 };
typedef NSUInteger MTLBarrierScope; // mtlbarrierscope
enum { MTLBarrierScopeBuffers = 1 };
typedef NSUInteger MTLCommandBufferStatus; // mtlcommandbufferstatus
enum { MTLCommandBufferStatusCompleted = 4, MTLCommandBufferStatusError = 5 };
typedef struct { NSUInteger width, height, depth; } MTLSize; // mtlsize

@interface MTLCompileOptions : NSObject // mtlcompileoptions
- (void)setLanguageVersion:(MTLLanguageVersion)version;
- (void)setFastMathEnabled:(BOOL)on;
@end
@interface MTLFunctionConstantValues : NSObject // mtlfunctionconstantvalues
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLBuffer <NSObject> // mtlbuffer
- (void *)contents;
@end
@protocol MTLFunction <NSObject>
@end
@protocol MTLLibrary <NSObject> // mtllibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)values error:(NSError **)error;
@end
@interface MTLBinaryArchiveDescriptor : NSObject // mtlbinaryarchivedescriptor
- (void)setUrl:(NSURL *)url;
@end
@interface MTLComputePipelineDescriptor : NSObject // mtlcomputepipelinedescriptor
- (void)setComputeFunction:(id<MTLFunction>)function;
- (void)setBinaryArchives:(NSArray *)archives;
@end
@protocol MTLBinaryArchive <NSObject> // mtlbinaryarchive
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)descriptor error:(NSError **)error;
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error;
@end
typedef NSUInteger MTLPipelineOption; // mtlpipelineoption
enum { MTLPipelineOptionNone = 0, MTLPipelineOptionFailOnBinaryArchiveMiss = 4 };
@protocol MTLComputePipelineState <NSObject> // mtlcomputepipelinestate
- (NSUInteger)maxTotalThreadsPerThreadgroup;
@end
@protocol MTLComputeCommandEncoder <NSObject> // mtlcomputecommandencoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)endEncoding;
@end
@protocol MTLSharedEvent <NSObject> // mtlsharedevent
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds; // macOS 12
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)value;
@end
@protocol MTLCommandBuffer <NSObject> // mtlcommandbuffer
- (void)encodeSignalEvent:(id<MTLSharedEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLSharedEvent>)event value:(uint64_t)value;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)commit;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (double)GPUStartTime;
- (double)GPUEndTime;
@end
@protocol MTLCommandQueue <NSObject> // mtlcommandqueue
- (id<MTLCommandBuffer>)commandBuffer;
@end
@protocol MTLDevice <NSObject> // mtldevice
- (NSString *)name;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLSharedEvent>)newSharedEvent;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)options deallocator:(void (^)(void *, NSUInteger))deallocator;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor options:(MTLPipelineOption)options reflection:(void *)reflection error:(NSError **)error;
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)descriptor error:(NSError **)error;
- (uint64_t)recommendedMaxWorkingSetSize;
@end
extern id<MTLDevice> MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained)); // mtlcreatesystemdefaultdevice()
