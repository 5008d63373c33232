// The web view. https://developer.apple.com/documentation/webkit/wkwebview
#pragma once
#import <AppKit/AppKit.h>

@interface WKWebViewConfiguration : NSObject // wkwebviewconfiguration
@end
@interface WKWebView : NSView
- (instancetype)initWithFrame:(NSRect)frame configuration:(WKWebViewConfiguration *)configuration;
- (id)loadRequest:(NSURLRequest *)request;
@end
