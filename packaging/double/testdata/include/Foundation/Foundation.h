#pragma once
#include_next <Foundation/Foundation.h>
#include <string.h>
#include <stdlib.h>

// GNUstep knows these classes and nothing of what they do.
@interface NSAppleEventDescriptor (Double)
- (unsigned)eventID;
- (NSAppleEventDescriptor *)paramDescriptorForKeyword:(unsigned)keyword;
- (NSAppleEventDescriptor *)attributeDescriptorForKeyword:(unsigned)keyword;
- (unsigned)enumCodeValue;
@end
@interface NSAppleEventManager (Double)
+ (NSAppleEventManager *)sharedAppleEventManager;
- (NSAppleEventDescriptor *)currentAppleEvent;
@end
