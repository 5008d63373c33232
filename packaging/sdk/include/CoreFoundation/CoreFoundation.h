// The types that Security and IOKit speak. https://developer.apple.com/documentation/corefoundation/ + the lower-case name
#pragma once
typedef const void *CFTypeRef;
typedef const struct __CFArray *CFArrayRef;
typedef const struct __CFDictionary *CFDictionaryRef;
typedef const struct __CFString *CFStringRef;
typedef const struct __CFBoolean *CFBooleanRef;
extern const CFBooleanRef kCFBooleanTrue;
extern void CFRelease(CFTypeRef);
