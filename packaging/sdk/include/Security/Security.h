// The Keychain. https://developer.apple.com/documentation/security/keychain_items
#pragma once
#include <stdint.h>
#include <CoreFoundation/CoreFoundation.h>
typedef int32_t OSStatus;
extern const CFStringRef kSecClass, kSecClassGenericPassword, kSecAttrService, kSecAttrAccount, kSecValueData, kSecReturnData, kSecMatchLimit, kSecMatchLimitOne;
extern OSStatus SecItemAdd(CFDictionaryRef attributes, CFTypeRef *result);
extern OSStatus SecItemCopyMatching(CFDictionaryRef query, CFTypeRef *result);
extern OSStatus SecItemUpdate(CFDictionaryRef query, CFDictionaryRef change);
extern OSStatus SecItemDelete(CFDictionaryRef query);
static const OSStatus errSecSuccess = 0, errSecItemNotFound = -25300, errSecDuplicateItem = -25299;
