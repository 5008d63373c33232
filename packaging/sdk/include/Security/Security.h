// The Keychain. https://developer.apple.com/documentation/security/keychain_items
#pragma once
#include <stdint.h>
typedef const void *CFTypeRef;
typedef const struct __CFDictionary *CFDictionaryRef;
typedef const struct __CFString *CFStringRef;
typedef const struct __CFBoolean *CFBooleanRef;
typedef int32_t OSStatus;
extern const CFStringRef kSecClass, kSecClassGenericPassword, kSecAttrService, kSecAttrAccount, kSecValueData, kSecReturnData, kSecMatchLimit, kSecMatchLimitOne;
extern const CFBooleanRef kCFBooleanTrue;
extern OSStatus SecItemAdd(CFDictionaryRef attributes, CFTypeRef *result);
extern OSStatus SecItemCopyMatching(CFDictionaryRef query, CFTypeRef *result);
extern OSStatus SecItemUpdate(CFDictionaryRef query, CFDictionaryRef change);
extern OSStatus SecItemDelete(CFDictionaryRef query);
extern void CFRelease(CFTypeRef);
static const OSStatus errSecSuccess = 0, errSecItemNotFound = -25300, errSecDuplicateItem = -25299;
