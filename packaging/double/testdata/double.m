// A double of AppKit for tests on Linux; see doc.go. Each class keeps what it is
// told and tells it again, no more.
#import <Foundation/Foundation.h>
#include <objc/runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

// ---- What Apple's runtime has and GCC's has not.

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static NSMapTable *associated; // address of object and key → value

static NSString *pair(id object, const void *key) { return [NSString stringWithFormat:@"%p %p", object, key]; }
void objc_setAssociatedObject(id object, const void *key, id value, uintptr_t policy) {
  pthread_mutex_lock(&lock);
  if (!associated) associated = NSCreateMapTable(NSObjectMapKeyCallBacks, NSObjectMapValueCallBacks, 16);
  if (value) NSMapInsert(associated, pair(object, key), value); else NSMapRemove(associated, pair(object, key));
  pthread_mutex_unlock(&lock);
}
id objc_getAssociatedObject(id object, const void *key) { return associated ? NSMapGet(associated, pair(object, key)) : nil; }
void objc_removeAssociatedObjects(id object) {}
IMP imp_implementationWithBlock(id block) { return NULL; }
id imp_getBlock(IMP imp) { return nil; }
BOOL imp_removeBlock(IMP imp) { return NO; }
char *property_copyAttributeValue(objc_property_t p, const char *name) { return NULL; }
objc_property_attribute_t *property_copyAttributeList(objc_property_t p, unsigned *n) { if (n) *n = 0; return NULL; }
BOOL class_addProperty(Class c, const char *name, const objc_property_attribute_t *l, unsigned n) { return NO; }
void class_replaceProperty(Class c, const char *name, const objc_property_attribute_t *l, unsigned n) {}
Protocol *objc_allocateProtocol(const char *name) { return nil; }
IMP class_getMethodImplementation_stret(Class c, SEL s) { return class_getMethodImplementation(c, s); }
// darwinkit leaves these two properties to be synthesised, which this ABI cannot.
#define GOID(NAME) \
  @interface NAME : NSObject @end \
  @interface NAME (Double) - (uintptr_t)goID; - (void)setGoID:(uintptr_t)id; @end \
  @implementation NAME (Double) \
  - (uintptr_t)goID { return (uintptr_t)[objc_getAssociatedObject(self, "goID") unsignedLongLongValue]; } \
  - (void)setGoID:(uintptr_t)v { objc_setAssociatedObject(self, "goID", [NSNumber numberWithUnsignedLongLong:v], 1); } \
  @end
GOID(DeallocListener)
GOID(ProtocolImplBase)

// ---- Properties: what was set, by name.

@interface Kept : NSObject {
  NSMutableDictionary *kept;
}
@end
@implementation Kept
- (NSMutableDictionary *)kept { if (!kept) kept = [NSMutableDictionary new]; return kept; }
- (void)dealloc { [kept release]; [super dealloc]; }
- (void)keep:(id)v as:(NSString *)k { if (v) [[self kept] setObject:v forKey:k]; else [[self kept] removeObjectForKey:k]; }
- (id)kept:(NSString *)k { return [[self kept] objectForKey:k]; }
@end
#define OBJECT(get, Set) - (void)Set:(id)v { [self keep:v as:@#get]; } - (id)get { return [self kept:@#get]; }
#define NUMBER(get, Set, T) - (void)Set:(T)v { [self keep:[NSNumber numberWithLongLong:(long long)v] as:@#get]; } - (T)get { return (T)[[self kept:@#get] longLongValue]; }

@interface NSImage : Kept @end
@implementation NSImage
- (id)initWithData:(NSData *)d { if ([d length] < 8 || memcmp([d bytes], "\x89PNG", 4)) { [self release]; return nil; } return self; }
NUMBER(isTemplate, setTemplate, BOOL)
@end

@interface NSStatusBarButton : Kept @end
@implementation NSStatusBarButton
OBJECT(title, setTitle) OBJECT(image, setImage) OBJECT(toolTip, setToolTip) OBJECT(accessibilityLabel, setAccessibilityLabel)
NUMBER(imagePosition, setImagePosition, long) NUMBER(appearsDisabled, setAppearsDisabled, BOOL)
@end

@interface NSStatusItem : Kept @end
@implementation NSStatusItem
- (id)button { id b = [self kept:@"button"]; if (!b) { b = [[NSStatusBarButton new] autorelease]; [self keep:b as:@"button"]; } return b; }
OBJECT(menu, setMenu) OBJECT(autosaveName, setAutosaveName)
- (BOOL)isVisible { return ![self kept:@"hidden"]; }
@end
static BOOL covered;
@interface BarWindow : NSObject @end
@implementation BarWindow
- (unsigned long)occlusionState { return covered ? 0 : 1 << 1; }
@end
@implementation NSStatusBarButton (Window)
- (id)window { static id one; if (!one) one = [BarWindow new]; return one; }
@end

static NSMutableArray *bar;
@interface NSStatusBar : Kept @end
@implementation NSStatusBar
+ (id)systemStatusBar { static id one; if (!one) one = [self new]; return one; }
- (id)statusItemWithLength:(double)n { if (!bar) bar = [NSMutableArray new]; id i = [[NSStatusItem new] autorelease]; [bar addObject:i]; return i; }
- (void)removeStatusItem:(id)i { [bar removeObject:i]; }
@end

@interface NSMenu : Kept { @public NSMutableArray *items; int changes; } @end
@implementation NSMenu
- (id)initWithTitle:(NSString *)t { items = [NSMutableArray new]; return self; }
- (void)dealloc { [items release]; [super dealloc]; }
- (void)addItem:(id)i { [items addObject:i]; changes++; }
- (void)removeAllItems { [items removeAllObjects]; changes++; }
NUMBER(autoenablesItems, setAutoenablesItems, BOOL)
- (void)setDelegate:(id)d { [self keep:[NSValue valueWithNonretainedObject:d] as:@"delegate"]; }
- (id)delegate { return [[self kept:@"delegate"] nonretainedObjectValue]; }
@end

@interface NSMenuItem : Kept { @public SEL action; id target; BOOL line; } @end
@implementation NSMenuItem
- (id)initWithTitle:(NSString *)t action:(SEL)a keyEquivalent:(NSString *)k { action = a; [self keep:t as:@"title"]; [self keep:k as:@"keyEquivalent"]; [self setEnabled:YES]; return self; }
+ (id)separatorItem { NSMenuItem *i = [[self new] autorelease]; i->line = YES; return i; }
- (void)setTarget:(id)t { target = t; }
OBJECT(keyEquivalent, setKeyEquivalent) OBJECT(toolTip, setToolTip) OBJECT(submenu, setSubmenu) OBJECT(identifier, setIdentifier) OBJECT(image, setImage)
- (id)title { return [self kept:@"title"]; }
- (void)setTitle:(NSString *)t { [self keep:t as:@"title"]; if (![self kept:@"titles"]) [self keep:[NSMutableArray array] as:@"titles"]; if ([[self kept:@"titles"] count] < 5000) [[self kept:@"titles"] addObject:t]; }
- (void)setAttributedTitle:(NSAttributedString *)t { [self keep:t as:@"attributed"]; if (t) [self keep:[t string] as:@"title"]; }
- (NSString *)colour { NSAttributedString *t = [self kept:@"attributed"]; return t ? [t attribute:@"NSColor" atIndex:0 effectiveRange:NULL] : nil; }
NUMBER(tag, setTag, long) NUMBER(state, setState, long) NUMBER(isEnabled, setEnabled, BOOL) NUMBER(isHidden, setHidden, BOOL) NUMBER(isAlternate, setAlternate, BOOL)
NUMBER(keyEquivalentModifierMask, setKeyEquivalentModifierMask, unsigned long)
@end

// A colour is its name.
@interface NSColor : NSObject @end
@implementation NSColor
+ (id)systemOrangeColor { return @"orange"; }
+ (id)systemRedColor { return @"red"; }
+ (id)secondaryLabelColor { return @"grey"; }
@end
static unsigned long keys;
@interface NSEvent : NSObject @end
@implementation NSEvent
+ (unsigned long)modifierFlags { return keys; }
@end

@interface NSPasteboard : Kept @end
@implementation NSPasteboard
+ (id)generalPasteboard { static id one; if (!one) one = [self new]; return one; }
- (long)clearContents { [[self kept] removeAllObjects]; return 1; }
- (BOOL)setString:(NSString *)s forType:(NSString *)t { [self keep:s as:t]; return YES; }
@end

static NSMutableArray *opened; // what the workspace was asked
@interface NSWorkspace : Kept @end
@implementation NSWorkspace
+ (id)sharedWorkspace { static id one; if (!one) one = [self new]; return one; }
- (id)notificationCenter { return [NSNotificationCenter defaultCenter]; }
- (BOOL)openURL:(NSURL *)u { [opened addObject:[u absoluteString]]; return YES; }
- (BOOL)selectFile:(NSString *)p inFileViewerRootedAtPath:(NSString *)r { [opened addObject:p]; return YES; }
@end
NSString *const NSWorkspaceWillSleepNotification = @"NSWorkspaceWillSleepNotification";
NSString *const NSWorkspaceDidWakeNotification = @"NSWorkspaceDidWakeNotification";

@interface NSView : Kept @end
@implementation NSView
@end
@interface WKWebViewConfiguration : Kept @end
@implementation WKWebViewConfiguration
@end
@interface WKNavigationAction : Kept @end
@implementation WKNavigationAction
OBJECT(request, setRequest)
@end
@interface WKWebView : NSView @end
@implementation WKWebView
- (void)setNavigationDelegate:(id)d { [self keep:[NSValue valueWithNonretainedObject:d] as:@"navigation"]; }
- (void)setUIDelegate:(id)d { [self keep:[NSValue valueWithNonretainedObject:d] as:@"ui"]; }
- (id)initWithFrame:(NSRect)f configuration:(id)c { return self; }
- (id)loadRequest:(NSURLRequest *)r { [self keep:[[r URL] absoluteString] as:@"url"]; return nil; }
@end
static id window;
@interface NSWindow : Kept @end
@implementation NSWindow
- (id)initWithContentRect:(NSRect)r styleMask:(unsigned long)s backing:(unsigned long)b defer:(BOOL)d { window = self; [self keep:[NSNumber numberWithDouble:r.size.width] as:@"width"]; return self; }
NUMBER(isReleasedWhenClosed, setReleasedWhenClosed, BOOL)
- (void)setContentMinSize:(NSSize)s {}
OBJECT(title, setTitle) OBJECT(contentView, setContentView)
- (void)setDelegate:(id)d { [self keep:[NSValue valueWithNonretainedObject:d] as:@"delegate"]; }
- (void)center {}
- (void)makeKeyAndOrderFront:(id)sender { [self keep:@"yes" as:@"shown"]; }
@end

// ---- The main loop: commands from the input, work from other threads.

static int wake[2] = {-1, -1};
static NSMutableArray *queue; // objects and selectors, guarded by lock
static void later(id self, SEL cmd, SEL selector, id object, BOOL wait, NSArray *modes) {
  pthread_mutex_lock(&lock);
  [queue addObject:[NSArray arrayWithObjects:self, NSStringFromSelector(selector), nil]];
  pthread_mutex_unlock(&lock);
  (void)!write(wake[1], "x", 1);
}
static void command(char *line);
static int finished, answer;
static BOOL asking;
static void turn(void) { // one command, or work
  @autoreleasepool {
    for (;;) {
      pthread_mutex_lock(&lock);
      NSArray *job = [queue count] ? [[queue objectAtIndex:0] retain] : nil;
      if (job) [queue removeObjectAtIndex:0];
      pthread_mutex_unlock(&lock);
      if (!job) break;
      [[job objectAtIndex:0] performSelector:NSSelectorFromString([job objectAtIndex:1]) withObject:nil];
      [job release];
    }
    if (finished) return;
    static char text[4096]; static size_t n; static size_t used;
    char *end;
    while (!(end = memchr(text, '\n', n))) {
      struct pollfd p[2] = {{0, POLLIN}, {wake[0], POLLIN}};
      if (poll(p, 2, -1) < 0 && errno != EINTR) _exit(3);
      if (p[1].revents & POLLIN) { char x[64]; (void)!read(wake[0], x, sizeof x); return; }
      if (p[0].revents & (POLLIN | POLLHUP)) {
        ssize_t k = read(0, text + n, sizeof text - n);
        if (k <= 0 || n + (size_t)k == sizeof text) _exit(4); // the test is gone, or the line is too long
        n += (size_t)k;
      }
    }
    *end = 0;
    char line[4096]; strcpy(line, text);
    used = (size_t)(end - text) + 1; n -= used; memmove(text, text + used, n);
    command(line);
  }
}

@interface NSAlert : Kept { @public NSMutableArray *buttons; } @end
static NSAlert *alert;
@implementation NSAlert
- (id)init { buttons = [NSMutableArray new]; return self; }
OBJECT(messageText, setMessageText) OBJECT(informativeText, setInformativeText)
- (id)addButtonWithTitle:(NSString *)t { id b = [[NSMenuItem new] autorelease]; [b setTitle:t]; [buttons addObject:b]; return b; }
- (long)runModal {
  NSAlert *before = alert; alert = self; asking = YES;
  while (asking) turn();
  alert = before;
  return 1000 + answer;
}
@end

static id app;
static void prepare(void);
@interface NSApplication : Kept @end
@implementation NSApplication
+ (id)sharedApplication { if (!app) { prepare(); app = [self new]; } return app; }
- (BOOL)setActivationPolicy:(long)p { [self keep:[NSNumber numberWithLong:p] as:@"policy"]; return YES; }
- (void)setDelegate:(id)d { [self keep:d as:@"delegate"]; }
- (void)activateIgnoringOtherApps:(BOOL)yes {}
OBJECT(mainMenu, setMainMenu)
- (void)run {
  @autoreleasepool { [[self kept:@"delegate"] applicationDidFinishLaunching:nil]; }
  printf("{\"ready\":true}\n"); fflush(stdout);
  while (!finished) turn();
  _exit(0); // like AppKit's terminate: it does not come back
}
- (void)terminate:(id)sender {
  switch ((int)(long)[[self kept:@"delegate"] applicationShouldTerminate:self]) { case 1: finished = 1; }
}
- (void)replyToApplicationShouldTerminate:(BOOL)yes { if (yes) { printf("{\"terminated\":true}\n"); fflush(stdout); finished = 1; } }
@end

// ---- The login item, notifications, the Keychain, activities, the Trash.

static long login;
@interface SMAppService : Kept @end
@implementation SMAppService
+ (id)mainAppService { static id one; if (!one) one = [self new]; return one; }
- (BOOL)registerAndReturnError:(NSError **)e { login = 1; return YES; }
- (BOOL)unregisterAndReturnError:(NSError **)e { login = 0; return YES; }
- (long)status { return login; }
+ (void)openSystemSettingsLoginItems { [opened addObject:@"login items"]; }
@end
static NSMutableArray *notes;
@interface UNMutableNotificationContent : Kept @end
@implementation UNMutableNotificationContent
OBJECT(title, setTitle) OBJECT(body, setBody)
@end
@interface UNNotificationRequest : Kept @end
@implementation UNNotificationRequest
+ (id)requestWithIdentifier:(NSString *)n content:(id)c trigger:(id)t { id r = [[self new] autorelease]; [r keep:c as:@"content"]; return r; }
@end
@interface UNUserNotificationCenter : Kept @end
@implementation UNUserNotificationCenter
+ (id)currentNotificationCenter { static id one; if (!one) one = [self new]; return one; }
- (void)requestAuthorizationWithOptions:(unsigned long)o completionHandler:(void (^)(BOOL, id))h { h(YES, nil); }
- (void)addNotificationRequest:(id)r withCompletionHandler:(id)h { [notes addObject:[[r kept:@"content"] title]]; }
@end
// The battery: a percentage, -1 = there is none in use.
static int charge = -1;
id IOPSCopyPowerSourcesInfo(void) { return [@"info" retain]; }
NSArray *IOPSCopyPowerSourcesList(id info) { return [[NSArray alloc] initWithObjects:@"ups", @"battery", nil]; }
NSString *IOPSGetProvidingPowerSourceType(id info) { return charge < 0 ? @"AC Power" : @"Battery Power"; }
NSDictionary *IOPSGetPowerSourceDescription(id info, id source) {
  BOOL own = [source isEqual:@"battery"];
  return [NSDictionary dictionaryWithObjectsAndKeys:own ? @"InternalBattery" : @"UPS", @"Type", [NSNumber numberWithInt:5000], @"Max Capacity", [NSNumber numberWithInt:own ? charge * 50 : 5000], @"Current Capacity", nil];
}
// The event that launched the app, or ends it.
static BOOL shutting;
@interface LaunchEvent : NSObject @end
@implementation LaunchEvent
- (unsigned)eventID { return shutting ? 'quit' : 'oapp'; }
- (id)attributeDescriptorForKeyword:(unsigned)k { return k == 'why?' ? self : nil; }
- (id)paramDescriptorForKeyword:(unsigned)k { return k == 'prdt' && getenv("DOUBLE_AT_LOGIN") ? self : nil; }
- (unsigned)enumCodeValue { return 'lgit'; }
@end
@implementation NSAppleEventManager (Double)
+ (id)sharedAppleEventManager { static id one; if (!one) one = [self new]; return one; }
- (id)currentAppleEvent { return [[LaunchEvent new] autorelease]; }
@end
static NSString *bundle(id self, SEL s) { return @"app.sparkbar.Sparkbar"; }
static BOOL trash(id self, SEL s, NSURL *u, id *out, id *error) { [opened addObject:[@"trash " stringByAppendingString:[u path]]]; return YES; }
static int awake;
static id beginActivity(id self, SEL s, unsigned long long o, NSString *why) { awake++; return [[NSObject new] autorelease]; }
static void endActivity(id self, SEL s, id a) { awake--; }

const NSString *kSecClass = @"class", *kSecClassGenericPassword = @"genp", *kSecAttrService = @"svce", *kSecAttrAccount = @"acct", *kSecValueData = @"v_Data",
               *kSecReturnData = @"r_Data", *kSecMatchLimit = @"limit", *kSecMatchLimitOne = @"one";
const CFBooleanRef kCFBooleanTrue = (CFBooleanRef)@"true";
static NSData *secret;
int SecItemCopyMatching(NSDictionary *q, id *out) { if (!secret) return -25300; *out = [secret retain]; return 0; }
int SecItemUpdate(NSDictionary *q, NSDictionary *c) { if (!secret) return -25300; [secret release]; secret = [[c objectForKey:(id)kSecValueData] retain]; return 0; }
int SecItemAdd(NSDictionary *q, id *out) { secret = [[q objectForKey:(id)kSecValueData] retain]; return 0; }
void CFRelease(CFTypeRef o) { [(id)o release]; }

// ---- Answers.

static NSString *json(id v) {
  if (!v) return @"null";
  if ([v isKindOfClass:[NSNumber class]]) return [v description];
  if ([v isKindOfClass:[NSArray class]]) {
    NSMutableArray *p = [NSMutableArray array];
    for (NSUInteger i = 0; i < [v count]; i++) [p addObject:json([v objectAtIndex:i])];
    return [NSString stringWithFormat:@"[%@]", [p componentsJoinedByString:@","]];
  }
  NSMutableString *m = [NSMutableString stringWithString:[v description]];
  [m replaceOccurrencesOfString:@"\\" withString:@"\\\\" options:0 range:NSMakeRange(0, [m length])];
  [m replaceOccurrencesOfString:@"\"" withString:@"\\\"" options:0 range:NSMakeRange(0, [m length])];
  [m replaceOccurrencesOfString:@"\n" withString:@"\\n" options:0 range:NSMakeRange(0, [m length])];
  [m replaceOccurrencesOfString:@"\x1b" withString:@"\\u001b" options:0 range:NSMakeRange(0, [m length])];
  return [NSString stringWithFormat:@"\"%@\"", m];
}
static NSString *menuText(NSMenu *m);
static NSMenuItem *titled(NSMenu *m, NSString *title) {
  for (NSUInteger i = 0; i < [m->items count]; i++) {
    NSMenuItem *it = [m->items objectAtIndex:i], *sub;
    if ([[it title] isEqual:title] && ![it submenu]) return it;
    if ([it submenu] && (sub = titled([it submenu], title))) return sub;
  }
  return nil;
}
static NSString *menuText(NSMenu *m) {
  NSMutableArray *p = [NSMutableArray array];
  for (NSUInteger i = 0; i < [m->items count]; i++) {
    NSMenuItem *it = [m->items objectAtIndex:i];
    if (it->line) { [p addObject:[NSString stringWithFormat:@"{\"separator\":true,\"hidden\":%@}", [it isHidden] ? @"true" : @"false"]]; continue; }
    [p addObject:[NSString stringWithFormat:@"{\"id\":%@,\"title\":%@,\"key\":%@,\"tag\":%ld,\"state\":%ld,\"enabled\":%@,\"hidden\":%@,\"alternate\":%@,\"colour\":%@,\"image\":%@,\"items\":%@}", json([it identifier]), json([it title]),
        json([it keyEquivalent]), [it tag], [it state], [it isEnabled] ? @"true" : @"false", [it isHidden] ? @"true" : @"false", [it isAlternate] ? @"true" : @"false", json([it colour]), [it image] ? @"true" : @"false", [it submenu] ? menuText([it submenu]) : @"null"]];
  }
  return [NSString stringWithFormat:@"[%@]", [p componentsJoinedByString:@","]];
}
static NSMenuItem *find(NSMenu *m, NSString *name) {
  for (NSUInteger i = 0; i < [m->items count]; i++) {
    NSMenuItem *it = [m->items objectAtIndex:i], *sub;
    if ([[it identifier] isEqual:name]) return it;
    if ([it submenu] && (sub = find([it submenu], name))) return sub;
  }
  return nil;
}
static void say(NSString *s) { printf("%s\n", [s UTF8String]); fflush(stdout); }
static void command(char *line) {
  NSStatusItem *item = [bar lastObject];
  NSMenu *menu = [item menu];
  char *arg = strchr(line, ' '); if (arg) *arg++ = 0;
  if (!strcmp(line, "dump")) {
    id b = [item button];
    say([NSString stringWithFormat:@"{\"items\":%lu,\"title\":%@,\"label\":%@,\"template\":%@,\"changes\":%d,\"menu\":%@}", (unsigned long)[bar count], json([b title]), json([b accessibilityLabel]),
        [(NSImage *)[b image] isTemplate] ? @"true" : @"false", menu->changes, menuText(menu)]);
  } else if (!strcmp(line, "open")) { [[menu delegate] menuWillOpen:menu]; say(@"{}"); }
  else if (!strcmp(line, "close")) { [[menu delegate] menuDidClose:menu]; say(@"{}"); }
  else if (!strcmp(line, "click")) {
    NSMenuItem *it = find(menu, [NSString stringWithUTF8String:arg]);
    if (!it) say(@"{\"error\":\"no such item\"}");
    else if ([it isHidden] || ![it isEnabled]) say(@"{\"error\":\"it cannot be clicked\"}");
    else { [it->target performSelector:it->action withObject:it]; say([NSString stringWithFormat:@"{\"clicked\":%@}", json([it title])]); }
  } else if (!strcmp(line, "titles")) {
    say(json([find(menu, [NSString stringWithUTF8String:arg]) kept:@"titles"]));
  } else if (!strcmp(line, "mainmenu")) { say(menuText([app mainMenu]));
  } else if (!strcmp(line, "choose")) { // of the main menu, by title
    NSMenuItem *it = titled([app mainMenu], [NSString stringWithUTF8String:arg]);
    if (it && it->target) [it->target performSelector:it->action withObject:it];
    say(it && it->target ? @"{}" : @"{\"error\":\"no such item\"}");
  } else if (!strcmp(line, "follow")) { // a link in the window
    WKNavigationAction *a = [[WKNavigationAction new] autorelease];
    [a setRequest:[NSURLRequest requestWithURL:[NSURL URLWithString:[NSString stringWithUTF8String:arg]]]];
    __block long policy = -1;
    WKWebView *view = [window contentView];
    [[[view kept:@"navigation"] nonretainedObjectValue] webView:view decidePolicyForNavigationAction:a decisionHandler:^(long p) { policy = p; }];
    say([NSString stringWithFormat:@"{\"policy\":%ld}", policy]);
  } else if (!strcmp(line, "keys")) { keys = strtoul(arg, NULL, 0); say(@"{}"); }
  else if (!strcmp(line, "battery")) { charge = atoi(arg); say(@"{}"); }
  else if (!strcmp(line, "cover")) { covered = YES; say(@"{}"); }
  else if (!strcmp(line, "sleep")) { [[NSNotificationCenter defaultCenter] postNotificationName:NSWorkspaceWillSleepNotification object:nil]; say(@"{}"); }
  else if (!strcmp(line, "dialog")) {
    NSMutableArray *p = [NSMutableArray array];
    if (alert) for (NSUInteger i = 0; i < [alert->buttons count]; i++) [p addObject:[[alert->buttons objectAtIndex:i] title]];
    say(alert ? [NSString stringWithFormat:@"{\"title\":%@,\"text\":%@,\"buttons\":%@}", json([alert messageText]), json([alert informativeText]), json(p)] : @"{}");
  } else if (!strcmp(line, "answer")) { answer = atoi(arg); asking = NO; say(@"{}"); }
  else if (!strcmp(line, "state")) {
    id board = [[NSPasteboard generalPasteboard] kept:@"public.utf8-plain-text"];
    say([NSString stringWithFormat:@"{\"pasteboard\":%@,\"opened\":%@,\"notes\":%@,\"awake\":%d,\"login\":%ld,\"secret\":%@,\"url\":%@,\"policy\":%@}", json(board), json(opened), json(notes), awake, login,
        json(secret ? [[[NSString alloc] initWithData:secret encoding:NSUTF8StringEncoding] autorelease] : nil), json([[window contentView] kept:@"url"]), json([app kept:@"policy"])]);
  } else if (!strcmp(line, "shut")) { [[window kept:@"delegate"] class]; [[[window kept:@"delegate"] nonretainedObjectValue] windowWillClose:nil]; say(@"{}"); }
  else if (!strcmp(line, "hide")) { [item keep:@"yes" as:@"hidden"]; say(@"{}"); }
  else if (!strcmp(line, "wake")) { [[NSNotificationCenter defaultCenter] postNotificationName:NSWorkspaceDidWakeNotification object:nil]; say(@"{}"); }
  else if (!strcmp(line, "reopen")) { [[app kept:@"delegate"] applicationShouldHandleReopen:app hasVisibleWindows:NO]; say(@"{}"); }
  else if (!strcmp(line, "login")) { login = atoi(arg); say(@"{}"); }
  else if (!strcmp(line, "shutdown")) { shutting = YES; say(@"{}"); [app terminate:nil]; }
  else if (!strcmp(line, "quit")) { say(@"{}"); [app terminate:nil]; }
  else say(@"{\"error\":\"unknown command\"}");
}

static void prepare(void) {
  (void)!pipe(wake);
  queue = [NSMutableArray new]; opened = [NSMutableArray new]; notes = [NSMutableArray new];
  class_replaceMethod([NSObject class], @selector(performSelectorOnMainThread:withObject:waitUntilDone:modes:), (IMP)later, "v@::@C@");
  class_replaceMethod([NSBundle class], @selector(bundleIdentifier), (IMP)bundle, "@@:");
  class_replaceMethod([NSFileManager class], sel_registerName("trashItemAtURL:resultingItemURL:error:"), (IMP)trash, "C@:@^@^@");
  class_replaceMethod([NSProcessInfo class], sel_registerName("beginActivityWithOptions:reason:"), (IMP)beginActivity, "@@:Q@");
  class_replaceMethod([NSProcessInfo class], sel_registerName("endActivity:"), (IMP)endActivity, "v@:@");
}
