//go:build darwin || double

package cocoa

// #cgo CFLAGS: -x objective-c -fblocks -Werror=objc-method-access -Werror=incompatible-pointer-types
// #cgo darwin CFLAGS: -Werror=unguarded-availability-new
// #cgo darwin LDFLAGS: -framework AppKit -framework Foundation -framework WebKit -framework Security -framework ServiceManagement -framework UserNotifications -framework IOKit -framework CoreFoundation
// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/progrium/darwinkit/objc"
)

// Only the repaired copy of darwinkit has this constant.
const _ = objc.SparkbarPatched

// sparkbarEvent is what the system calls. It must not panic into C.
//
//export sparkbarEvent
func sparkbarEvent(kind C.int, arg C.long) C.int {
	answer := C.int(0)
	guarded(fmt.Sprintf("event %d", kind), func() {
		if current != nil {
			answer = C.int(current.event(int(kind), int(arg)))
		}
	})
	return answer
}

func delegate() objc.Object { return objc.ObjectFrom(C.sparkbar_delegate()) }

func newWindow() objc.Object { return objc.ObjectFrom(C.sparkbar_window()) }

func loadWindow(w objc.Object, url string) {
	s := C.CString(url)
	defer C.free(unsafe.Pointer(s))
	C.sparkbar_window_load(w.Ptr(), s)
}

func watchPower(center objc.Object) { C.sparkbar_watch_power(center.Ptr()) }

func wakeMain() { C.sparkbar_wake() }

func launchedAtLogin() bool { return C.sparkbar_launched_at_login() != 0 }

func endedBySystem() bool { return C.sparkbar_ended_by_system() != 0 }

func battery() int { return int(C.sparkbar_battery()) }

func loginStatus() int { return int(C.sparkbar_login_status()) }

func setLogin(on bool) error {
	n := C.int(0)
	if on {
		n = 1
	}
	e := C.sparkbar_login_set(n)
	if e == nil {
		return nil
	}
	defer C.free(unsafe.Pointer(e))
	return errors.New(C.GoString(e))
}

func openLoginSettings() { C.sparkbar_login_settings() }

func notify(title, text string) {
	a, b := C.CString(title), C.CString(text)
	defer C.free(unsafe.Pointer(a))
	defer C.free(unsafe.Pointer(b))
	C.sparkbar_notify(a, b)
}

// Key returns the API key that the Keychain holds, "" if none.
func Key() string {
	k := C.sparkbar_key_get()
	if k == nil {
		return ""
	}
	defer C.free(unsafe.Pointer(k))
	return C.GoString(k)
}

// SetKey puts the API key into the Keychain.
func SetKey(key string) error {
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	if status := C.sparkbar_key_set(k); status != 0 {
		return fmt.Errorf("the Keychain did not take the key (status %d)", int(status))
	}
	return nil
}

// The events of bridge.h.
const (
	eventLaunched     = C.EventLaunched
	eventTerminate    = C.EventTerminate
	eventReopen       = C.EventReopen
	eventMenuOpens    = C.EventMenuOpens
	eventMenuCloses   = C.EventMenuCloses
	eventClick        = C.EventClick
	eventWindowCloses = C.EventWindowCloses
	eventSleep        = C.EventSleep
	eventWake         = C.EventWake
	eventWork         = C.EventWork
)
