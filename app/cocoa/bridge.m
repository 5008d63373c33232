//go:build darwin || double

#import <AppKit/AppKit.h>
#import <IOKit/ps/IOPowerSources.h>
#import <Security/Security.h>
#import <ServiceManagement/ServiceManagement.h>
#import <UserNotifications/UserNotifications.h>
#import <WebKit/WebKit.h>
#include "bridge.h"
#include "_cgo_export.h"

// Delegate receives everything that the system tells the app. Its methods only
// pass on; sparkbarEvent catches panics, so none crosses these frames.
@interface SparkbarDelegate : NSObject <NSApplicationDelegate, NSMenuDelegate, NSWindowDelegate, WKNavigationDelegate, WKUIDelegate>
@end

@implementation SparkbarDelegate
- (void)applicationDidFinishLaunching:(NSNotification *)note { sparkbarEvent(EventLaunched, 0); }
- (NSApplicationTerminateReply)applicationShouldTerminate:(NSApplication *)app { return (NSApplicationTerminateReply)sparkbarEvent(EventTerminate, 0); }
- (BOOL)applicationShouldHandleReopen:(NSApplication *)app hasVisibleWindows:(BOOL)visible { sparkbarEvent(EventReopen, 0); return NO; }
- (void)menuWillOpen:(NSMenu *)menu { sparkbarEvent(EventMenuOpens, 0); }
- (void)menuDidClose:(NSMenu *)menu { sparkbarEvent(EventMenuCloses, 0); }
- (void)windowWillClose:(NSNotification *)note { sparkbarEvent(EventWindowCloses, 0); }
- (void)click:(NSMenuItem *)item { sparkbarEvent(EventClick, [item tag]); }
- (void)willSleep:(NSNotification *)note { sparkbarEvent(EventSleep, 0); }
- (void)didWake:(NSNotification *)note { sparkbarEvent(EventWake, 0); }
- (void)work:(id)unused { sparkbarEvent(EventWork, 0); }

// The window shows this program's own pages only; every other link goes to the
// user's browser.
- (void)webView:(WKWebView *)view decidePolicyForNavigationAction:(WKNavigationAction *)action decisionHandler:(void (^)(WKNavigationActionPolicy))decide {
  NSURL *u = [[action request] URL];
  BOOL own = [[u host] isEqualToString:@"127.0.0.1"] || [[u scheme] isEqualToString:@"about"] || [[u scheme] isEqualToString:@"blob"];
  if (!own) [[NSWorkspace sharedWorkspace] openURL:u];
  decide(own ? WKNavigationActionPolicyAllow : WKNavigationActionPolicyCancel);
}
- (WKWebView *)webView:(WKWebView *)view createWebViewWithConfiguration:(WKWebViewConfiguration *)configuration forNavigationAction:(WKNavigationAction *)action windowFeatures:(WKWindowFeatures *)features {
  [[NSWorkspace sharedWorkspace] openURL:[[action request] URL]];
  return nil;
}
@end

static SparkbarDelegate *delegate;

void *sparkbar_delegate(void) {
  if (!delegate) delegate = [[SparkbarDelegate alloc] init];
  return delegate;
}

// A run-loop call, not the main queue: a dialog that is open on the main thread
// would hold up the queue, and with it every change of the menu.
void sparkbar_wake(void) {
  @autoreleasepool {
    NSArray *modes = [NSArray arrayWithObject:NSRunLoopCommonModes];
    [delegate performSelectorOnMainThread:@selector(work:) withObject:nil waitUntilDone:NO modes:modes];
  }
}

void sparkbar_watch_power(void *center) {
  NSNotificationCenter *c = (NSNotificationCenter *)center;
  [c addObserver:delegate selector:@selector(willSleep:) name:NSWorkspaceWillSleepNotification object:nil];
  [c addObserver:delegate selector:@selector(didWake:) name:NSWorkspaceDidWakeNotification object:nil];
}

void *sparkbar_window(void) {
  NSRect frame = {{0, 0}, {1120, 760}};
  NSUInteger style = NSWindowStyleMaskTitled | NSWindowStyleMaskClosable | NSWindowStyleMaskMiniaturizable | NSWindowStyleMaskResizable;
  NSWindow *w = [[NSWindow alloc] initWithContentRect:frame styleMask:style backing:NSBackingStoreBuffered defer:NO];
  NSSize least = {900, 600};
  [w setReleasedWhenClosed:NO]; // it is shown again
  [w setContentMinSize:least];
  [w setTitle:@"Sparkbar"];
  [w setDelegate:delegate];
  WKWebView *view = [[WKWebView alloc] initWithFrame:frame configuration:[[[WKWebViewConfiguration alloc] init] autorelease]];
  [view setNavigationDelegate:delegate];
  [view setUIDelegate:delegate];
  [w setContentView:view];
  [view release];
  [w center];
  return w;
}

void sparkbar_window_load(void *window, const char *url) {
  WKWebView *view = (WKWebView *)[(NSWindow *)window contentView];
  NSURL *u = [NSURL URLWithString:[NSString stringWithUTF8String:url]];
  if (u) [view loadRequest:[NSURLRequest requestWithURL:u]];
}

// The event that launched the app says so when it was the login.
int sparkbar_launched_at_login(void) {
  @autoreleasepool {
    NSAppleEventDescriptor *e = [[NSAppleEventManager sharedAppleEventManager] currentAppleEvent];
    return [e eventID] == 'oapp' && [[e paramDescriptorForKeyword:'prdt'] enumCodeValue] == 'lgit';
  }
}

// So does the one that ends it when the user logs out or the computer stops.
int sparkbar_ended_by_system(void) {
  @autoreleasepool {
    NSAppleEventDescriptor *e = [[NSAppleEventManager sharedAppleEventManager] currentAppleEvent];
    return [e eventID] == 'quit' && [e attributeDescriptorForKeyword:'why?'] != nil;
  }
}

int sparkbar_battery(void) {
  int percent = -1;
  CFTypeRef info = IOPSCopyPowerSourcesInfo();
  if (!info) return percent;
  CFStringRef from = IOPSGetProvidingPowerSourceType(info);
  CFArrayRef list = IOPSCopyPowerSourcesList(info);
  @autoreleasepool {
    if (from && [(NSString *)from isEqualToString:@"Battery Power"]) {
      for (NSUInteger i = 0; i < [(NSArray *)list count]; i++) {
        NSDictionary *source = (NSDictionary *)IOPSGetPowerSourceDescription(info, [(NSArray *)list objectAtIndex:i]);
        if (![[source objectForKey:@"Type"] isEqualToString:@"InternalBattery"]) continue;
        int most = [[source objectForKey:@"Max Capacity"] intValue];
        if (most > 0) percent = 100 * [[source objectForKey:@"Current Capacity"] intValue] / most;
      }
    }
  }
  if (list) CFRelease(list);
  CFRelease(info);
  return percent;
}

// The login item and notifications belong to a bundle; a bare program has none.
static BOOL bundled(void) { return [[NSBundle mainBundle] bundleIdentifier] != nil; }

int sparkbar_login_status(void) {
  @autoreleasepool {
    if (!bundled()) return -1;
    switch ([[SMAppService mainAppService] status]) {
    case SMAppServiceStatusEnabled: return 1;
    case SMAppServiceStatusRequiresApproval: return 2;
    default: return 0;
    }
  }
}

char *sparkbar_login_set(int on) {
  @autoreleasepool {
    if (!bundled()) return strdup("only the app can start at login, not a bare program");
    NSError *error = nil;
    BOOL done = on ? [[SMAppService mainAppService] registerAndReturnError:&error] : [[SMAppService mainAppService] unregisterAndReturnError:&error];
    if (done) return NULL;
    const char *why = [[error localizedDescription] UTF8String];
    return strdup(why ? why : "macOS refused to change the login item");
  }
}

void sparkbar_login_settings(void) { [SMAppService openSystemSettingsLoginItems]; }

void sparkbar_notify(const char *title, const char *text) {
  if (!bundled()) return;
  UNMutableNotificationContent *content = [[UNMutableNotificationContent alloc] init];
  NSString *name = [NSString stringWithUTF8String:title];
  [content setTitle:name];
  [content setBody:[NSString stringWithUTF8String:text]];
  UNNotificationRequest *request = [UNNotificationRequest requestWithIdentifier:name content:content trigger:nil];
  [content release];
  UNUserNotificationCenter *center = [UNUserNotificationCenter currentNotificationCenter];
  [center requestAuthorizationWithOptions:UNAuthorizationOptionAlert completionHandler:^(BOOL granted, NSError *error) {
    if (granted) [center addNotificationRequest:request withCompletionHandler:nil];
  }];
}

// The API key is one generic password of the login Keychain.
static NSMutableDictionary *keyItem(void) {
  NSMutableDictionary *q = [NSMutableDictionary dictionary];
  [q setObject:(id)kSecClassGenericPassword forKey:(id)kSecClass];
  [q setObject:@"app.sparkbar.Sparkbar" forKey:(id)kSecAttrService];
  [q setObject:@"api-key" forKey:(id)kSecAttrAccount];
  return q;
}

char *sparkbar_key_get(void) {
  @autoreleasepool {
    NSMutableDictionary *q = keyItem();
    [q setObject:(id)kCFBooleanTrue forKey:(id)kSecReturnData];
    [q setObject:(id)kSecMatchLimitOne forKey:(id)kSecMatchLimit];
    CFTypeRef found = NULL;
    if (SecItemCopyMatching((CFDictionaryRef)q, &found) != errSecSuccess || !found) return NULL;
    NSData *data = (NSData *)found;
    char *key = strndup([data bytes], [data length]);
    CFRelease(found);
    return key;
  }
}

int sparkbar_key_set(const char *key) {
  @autoreleasepool {
    NSData *data = [NSData dataWithBytes:key length:strlen(key)];
    NSMutableDictionary *q = keyItem(), *change = [NSMutableDictionary dictionary];
    [change setObject:data forKey:(id)kSecValueData];
    OSStatus status = SecItemUpdate((CFDictionaryRef)q, (CFDictionaryRef)change);
    if (status != errSecItemNotFound) return status;
    [q setObject:data forKey:(id)kSecValueData];
    return SecItemAdd((CFDictionaryRef)q, NULL);
  }
}
