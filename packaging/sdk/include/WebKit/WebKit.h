// The web view. https://developer.apple.com/documentation/webkit/ + the lower-case name at the right
#pragma once
#import <AppKit/AppKit.h>

@class WKWebView;
@interface WKWebViewConfiguration : NSObject // wkwebviewconfiguration
@end
@interface WKWindowFeatures : NSObject // wkwindowfeatures
@end
@interface WKNavigationAction : NSObject // wknavigationaction
- (NSURLRequest *)request;
@end
typedef NSInteger WKNavigationActionPolicy; // wknavigationactionpolicy
static const WKNavigationActionPolicy WKNavigationActionPolicyCancel = 0, WKNavigationActionPolicyAllow = 1;
@protocol WKNavigationDelegate <NSObject> // wknavigationdelegate
@optional
- (void)webView:(WKWebView *)view decidePolicyForNavigationAction:(WKNavigationAction *)action decisionHandler:(void (^)(WKNavigationActionPolicy))handler;
@end
@protocol WKUIDelegate <NSObject> // wkuidelegate
@optional
- (WKWebView *)webView:(WKWebView *)view createWebViewWithConfiguration:(WKWebViewConfiguration *)configuration forNavigationAction:(WKNavigationAction *)action windowFeatures:(WKWindowFeatures *)features;
@end
@interface WKWebView : NSView // wkwebview
- (instancetype)initWithFrame:(NSRect)frame configuration:(WKWebViewConfiguration *)configuration;
- (id)loadRequest:(NSURLRequest *)request;
- (void)setNavigationDelegate:(id<WKNavigationDelegate>)delegate;
- (void)setUIDelegate:(id<WKUIDelegate>)delegate;
@end
