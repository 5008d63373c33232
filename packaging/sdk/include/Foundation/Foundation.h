// What the Objective-C files of this program and of darwinkit use of Foundation.
// Each declaration is that of Apple's page; classes and methods are found below
// https://developer.apple.com/documentation/foundation/ under their names.
#pragma once
#include <objc/objc.h>
#include <objc/runtime.h>
#include <objc/message.h>
#include <objc/NSObject.h>
#include <dispatch/dispatch.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

@class NSString, NSArray, NSData, NSError, NSDictionary, NSNotification, NSTimer, NSRunLoop, NSURL;
typedef double NSTimeInterval;
typedef uint8_t Byte; // Carbon's MacTypes.h
typedef double CGFloat;
typedef struct CGPoint { CGFloat x, y; } CGPoint; // ../corefoundation/cgpoint
typedef struct CGSize { CGFloat width, height; } CGSize;
typedef struct CGRect { CGPoint origin; CGSize size; } CGRect;
typedef CGRect NSRect;
typedef CGSize NSSize;
extern NSString *const NSRunLoopCommonModes; // nsrunloopcommonmodes

@protocol NSCopying
@end

@interface NSString : NSObject // nsstring
+ (instancetype)stringWithUTF8String:(const char *)text;
- (const char *)UTF8String;
- (NSUInteger)length;
- (BOOL)isEqualToString:(NSString *)other;
@end
@interface NSConstantString : NSString
@end

@interface NSNumber : NSObject // nsnumber
- (int)intValue;
@end

@interface NSData : NSObject // nsdata
+ (instancetype)data;
+ (instancetype)dataWithBytes:(const void *)bytes length:(NSUInteger)length;
- (const void *)bytes;
- (NSUInteger)length;
@end

@interface NSArray : NSObject // nsarray
- (NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
- (id)objectAtIndexedSubscript:(NSUInteger)index;
+ (instancetype)arrayWithObject:(id)object;
@end
@interface NSMutableArray : NSArray // nsmutablearray
+ (instancetype)arrayWithCapacity:(NSUInteger)n;
- (void)addObject:(id)object;
@end

@interface NSDictionary : NSObject // nsdictionary
- (NSUInteger)count;
- (NSArray *)allKeys;
- (id)objectForKey:(id)key;
- (id)objectForKeyedSubscript:(id)key;
@end
@interface NSMutableDictionary : NSDictionary // nsmutabledictionary
+ (instancetype)dictionary;
+ (instancetype)dictionaryWithCapacity:(NSUInteger)n;
- (void)setObject:(id)object forKey:(id)key;
- (void)setObject:(id)object forKeyedSubscript:(id)key;
@end

@interface NSError : NSObject // nserror
- (NSString *)localizedDescription;
- (NSInteger)code;
@end

@interface NSNotification : NSObject // nsnotification
- (NSString *)name;
@end

@interface NSNotificationCenter : NSObject // nsnotificationcenter
- (void)addObserver:(id)observer selector:(SEL)selector name:(NSString *)name object:(id)object;
@end

@interface NSBundle : NSObject // nsbundle
+ (NSBundle *)mainBundle;
- (NSString *)bundleIdentifier;
@end

@interface NSURL : NSObject // nsurl
+ (instancetype)URLWithString:(NSString *)text;
+ (instancetype)fileURLWithPath:(NSString *)path;
- (NSString *)host;
- (NSString *)scheme;
@end
@interface NSURLRequest : NSObject // nsurlrequest
+ (instancetype)requestWithURL:(NSURL *)url;
- (NSURL *)URL;
@end

@interface NSAppleEventDescriptor : NSObject // nsappleeventdescriptor
- (uint32_t)eventID;
- (NSAppleEventDescriptor *)paramDescriptorForKeyword:(uint32_t)keyword;
- (NSAppleEventDescriptor *)attributeDescriptorForKeyword:(uint32_t)keyword;
- (uint32_t)enumCodeValue;
@end
@interface NSAppleEventManager : NSObject // nsappleeventmanager
+ (NSAppleEventManager *)sharedAppleEventManager;
- (NSAppleEventDescriptor *)currentAppleEvent;
@end

@interface NSObject (MainThread) // nsobject/performselectoronmainthread
- (void)performSelectorOnMainThread:(SEL)selector withObject:(id)object waitUntilDone:(BOOL)wait modes:(NSArray *)modes;
@end
