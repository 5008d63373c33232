// What bridge.m of the app uses of AppKit.
// https://developer.apple.com/documentation/appkit/ + the lower-case name at the right
#pragma once
#import <Foundation/Foundation.h>

@class NSApplication, NSMenu, NSView;
extern NSApplication *NSApp; // nsapp
extern NSString *const NSWorkspaceWillSleepNotification; // nsworkspace/willsleepnotification
extern NSString *const NSWorkspaceDidWakeNotification; // nsworkspace/didwakenotification

typedef NSUInteger NSApplicationTerminateReply; // nsapplication/terminatereply

@protocol NSApplicationDelegate <NSObject> // nsapplicationdelegate
@optional
- (void)applicationDidFinishLaunching:(NSNotification *)note;
- (NSApplicationTerminateReply)applicationShouldTerminate:(NSApplication *)app;
- (BOOL)applicationShouldHandleReopen:(NSApplication *)app hasVisibleWindows:(BOOL)visible;
@end
@protocol NSMenuDelegate <NSObject> // nsmenudelegate
@optional
- (void)menuWillOpen:(NSMenu *)menu;
- (void)menuDidClose:(NSMenu *)menu;
@end
@protocol NSWindowDelegate <NSObject> // nswindowdelegate
@optional
- (void)windowWillClose:(NSNotification *)note;
@end

@interface NSMenuItem : NSObject // nsmenuitem
- (NSInteger)tag;
@end

@interface NSWorkspace : NSObject // nsworkspace
+ (NSWorkspace *)sharedWorkspace;
- (BOOL)openURL:(NSURL *)url;
@end

@interface NSView : NSObject // nsview
@end

typedef NSUInteger NSWindowStyleMask; // nswindow/stylemask-swift.struct
static const NSWindowStyleMask NSWindowStyleMaskTitled = 1 << 0, NSWindowStyleMaskClosable = 1 << 1, NSWindowStyleMaskMiniaturizable = 1 << 2, NSWindowStyleMaskResizable = 1 << 3;
typedef NSUInteger NSBackingStoreType; // nswindow/backingstoretype
static const NSBackingStoreType NSBackingStoreBuffered = 2;
@interface NSWindow : NSObject // nswindow
- (instancetype)initWithContentRect:(NSRect)frame styleMask:(NSWindowStyleMask)style backing:(NSBackingStoreType)store defer:(BOOL)flag;
- (void)setReleasedWhenClosed:(BOOL)flag;
- (void)setContentMinSize:(NSSize)size;
- (void)setTitle:(NSString *)title;
- (void)setDelegate:(id<NSWindowDelegate>)delegate;
- (void)setContentView:(NSView *)view;
- (NSView *)contentView;
- (void)center;
@end
