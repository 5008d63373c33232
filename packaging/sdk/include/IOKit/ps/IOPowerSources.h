// The battery. https://developer.apple.com/documentation/iokit/iopowersources_h
#pragma once
#include <CoreFoundation/CoreFoundation.h>
extern CFTypeRef IOPSCopyPowerSourcesInfo(void); // iokit/1523839-iopscopypowersourcesinfo
extern CFArrayRef IOPSCopyPowerSourcesList(CFTypeRef blob); // iokit/1523856-iopscopypowersourceslist
extern CFDictionaryRef IOPSGetPowerSourceDescription(CFTypeRef blob, CFTypeRef source); // iokit/1523867-iopsgetpowersourcedescription
extern CFStringRef IOPSGetProvidingPowerSourceType(CFTypeRef blob); // iokit/1523851-iopsgetprovidingpowersourcetype
