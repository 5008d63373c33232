// The login item. https://developer.apple.com/documentation/servicemanagement/smappservice
#pragma once
#import <Foundation/Foundation.h>

typedef NSInteger SMAppServiceStatus; // smappservice/status-swift.enum
static const SMAppServiceStatus SMAppServiceStatusNotRegistered = 0, SMAppServiceStatusEnabled = 1, SMAppServiceStatusRequiresApproval = 2, SMAppServiceStatusNotFound = 3;
API_AVAILABLE(macos(13.0)) @interface SMAppService : NSObject
+ (SMAppService *)mainAppService;
- (BOOL)registerAndReturnError:(NSError **)error;
- (BOOL)unregisterAndReturnError:(NSError **)error;
- (SMAppServiceStatus)status;
+ (void)openSystemSettingsLoginItems;
@end
