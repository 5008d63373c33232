//go:build darwin || double

package cocoa

import (
	"github.com/progrium/darwinkit/objc"

	"sparkbar/app/menubar"
)

// entry is a row of the main menu, which is seen while the window is open. It is
// sent along the responder chain, or is an item of the menu bar's menu (click).
// The zero value is a line.
type entry struct {
	title, action, click, key string
	shift                     bool
}

// mainMenus are the menus beside the apple. Without them the window has no
// shortcuts, not even for copying.
var mainMenus = []struct {
	title string
	rows  []entry
}{
	{menubar.App, []entry{{title: "About " + menubar.App, click: "about"}, {}, {title: "Settings…", click: "settings", key: ","}, {},
		{title: "Hide " + menubar.App, action: "hide:", key: "h"}, {}, {title: "Quit " + menubar.App, click: "quit", key: "q"}}},
	{"File", []entry{{title: "New Chat", click: "chat", key: "n"}, {title: "Close Window", action: "performClose:", key: "w"}}},
	{"Edit", []entry{{title: "Undo", action: "undo:", key: "z"}, {title: "Redo", action: "redo:", key: "z", shift: true}, {}, {title: "Cut", action: "cut:", key: "x"},
		{title: "Copy", action: "copy:", key: "c"}, {title: "Paste", action: "paste:", key: "v"}, {title: "Select All", action: "selectAll:", key: "a"}}},
	{"View", []entry{{title: "Reload", action: "reload:", key: "r"}}},
	{"Window", []entry{{title: "Minimize", action: "performMiniaturize:", key: "m"}, {title: "Zoom", action: "performZoom:"}}},
}

// mainMenu makes them.
func (a *App) mainMenu() objc.Object {
	newMenu := func(title string) objc.Object {
		return send[objc.Object](send[objc.Object](class("NSMenu"), "alloc"), "initWithTitle:", title)
	}
	newItem := func(title, action, key string) objc.Object {
		return send[objc.Object](send[objc.Object](class("NSMenuItem"), "alloc"), "initWithTitle:action:keyEquivalent:", title, objc.Sel(action), key)
	}
	bar := newMenu("")
	for _, m := range mainMenus {
		menu := newMenu(m.title)
		for _, e := range m.rows {
			var row objc.Object
			switch {
			case e.click != "":
				row = newItem(e.title, "click:", e.key)
				send[objc.Void](row, "setTarget:", delegate())
				send[objc.Void](row, "setTag:", a.rendered.tags.give(menubar.Item{ID: e.click}))
			case e.action != "":
				row = newItem(e.title, e.action, e.key)
				if e.shift {
					send[objc.Void](row, "setKeyEquivalentModifierMask:", uint(commandKey|shiftKey))
				}
			default:
				row = send[objc.Object](class("NSMenuItem"), "separatorItem")
			}
			send[objc.Void](menu, "addItem:", row)
		}
		head := newItem(m.title, "submenuAction:", "")
		send[objc.Void](head, "setSubmenu:", menu)
		send[objc.Void](bar, "addItem:", head)
	}
	return bar
}
