#pragma once
#include <stdint.h>

// What the system calls back; the numbers are those of bridge.go.
enum {
  EventLaunched = 1,
  EventTerminate,   // returns 0 cancel, 1 now, 2 later
  EventReopen,
  EventMenuOpens,
  EventMenuCloses,
  EventClick,       // argument: the item's tag
  EventWindowCloses,
  EventSleep,
  EventWake,
  EventWork,        // functions wait for the main thread
};

void *sparkbar_delegate(void);          // the one delegate, kept for ever
void sparkbar_wake(void);               // EventWork on the main thread, soon
void sparkbar_watch_power(void *center);
void *sparkbar_window(void);            // the window of the dashboard, kept for ever
void sparkbar_window_load(void *window, const char *url);
int sparkbar_launched_at_login(void);   // 1 = by the system, not by hand; only while launching
int sparkbar_ended_by_system(void);     // 1 = the app is told to quit because the system ends
int sparkbar_battery(void);             // percent, -1 = the computer does not run on one
int sparkbar_login_status(void);        // -1 none, 0 off, 1 on, 2 needs approval
char *sparkbar_login_set(int on);       // NULL or an error to free
void sparkbar_login_settings(void);
void sparkbar_notify(const char *title, const char *text);
char *sparkbar_key_get(void);           // to free, NULL = none
int sparkbar_key_set(const char *key);  // 0 = done, else a status of the Keychain
