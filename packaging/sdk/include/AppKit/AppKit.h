// What the Objective-C file of the app declares of AppKit: the methods that the
// system calls. https://developer.apple.com/documentation/appkit/
#pragma once
#import <Foundation/Foundation.h>

@class NSApplication, NSMenu, NSWindow, NSMenuItem;
extern NSApplication *NSApp; // nsapp

typedef NSUInteger NSApplicationTerminateReply; // nsapplication/terminatereply
static const NSApplicationTerminateReply NSTerminateCancel = 0, NSTerminateNow = 1, NSTerminateLater = 2;

@protocol NSApplicationDelegate <NSObject> // nsapplicationdelegate
@optional
- (void)applicationDidFinishLaunching:(NSNotification *)note;
- (NSApplicationTerminateReply)applicationShouldTerminate:(NSApplication *)app;
- (BOOL)applicationShouldHandleReopen:(NSApplication *)app hasVisibleWindows:(BOOL)visible;
- (BOOL)applicationSupportsSecureRestorableState:(NSApplication *)app API_AVAILABLE(macos(12.0));
@end
@protocol NSMenuDelegate <NSObject> // nsmenudelegate
@optional
- (void)menuNeedsUpdate:(NSMenu *)menu;
- (void)menuWillOpen:(NSMenu *)menu;
- (void)menuDidClose:(NSMenu *)menu;
@end
@protocol NSWindowDelegate <NSObject> // nswindowdelegate
@optional
- (void)windowWillClose:(NSNotification *)note;
@end
