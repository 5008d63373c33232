// Notifications. https://developer.apple.com/documentation/usernotifications/
#pragma once
#import <Foundation/Foundation.h>

@class UNNotificationTrigger;
API_AVAILABLE(macos(10.14)) @interface UNNotificationContent : NSObject // unnotificationcontent
@end
API_AVAILABLE(macos(10.14)) @interface UNMutableNotificationContent : UNNotificationContent // unmutablenotificationcontent
- (void)setTitle:(NSString *)text;
- (void)setBody:(NSString *)text;
@end
API_AVAILABLE(macos(10.14)) @interface UNNotificationRequest : NSObject // unnotificationrequest
+ (instancetype)requestWithIdentifier:(NSString *)name content:(UNNotificationContent *)content trigger:(UNNotificationTrigger *)trigger;
@end
typedef NSUInteger UNAuthorizationOptions; // unauthorizationoptions
static const UNAuthorizationOptions UNAuthorizationOptionSound = 1 << 1, UNAuthorizationOptionAlert = 1 << 2;
API_AVAILABLE(macos(10.14)) @interface UNUserNotificationCenter : NSObject // unusernotificationcenter
+ (UNUserNotificationCenter *)currentNotificationCenter;
- (void)requestAuthorizationWithOptions:(UNAuthorizationOptions)options completionHandler:(void (^)(BOOL granted, NSError *error))handler;
- (void)addNotificationRequest:(UNNotificationRequest *)request withCompletionHandler:(void (^)(NSError *error))handler;
@end
