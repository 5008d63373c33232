//go:build darwin || double

package cocoa

import (
	"slices"

	"github.com/progrium/darwinkit/objc"

	"sparkbar/app/menubar"
)

// menu is an NSMenu with what it shows. An update changes the items in place, so
// an open menu does not move under the pointer; only where the list of items
// itself is another one, that submenu is filled anew.
type menu struct {
	object objc.Object
	rows   []*rowItem
	tags   *tags
}

// tags gives each item a number that is never used again.
type tags struct {
	next  int
	items map[int]menubar.Item
}

// give returns a number for an item.
func (t *tags) give(it menubar.Item) int {
	n := t.next
	t.next++
	t.items[n] = it
	return n
}

type rowItem struct {
	object objc.Object // retained
	tag    int
	last   menubar.Item
	sub    *menu
}

func newMenu() menu { return makeMenu(&tags{next: 1, items: map[int]menubar.Item{}}, true) }

func makeMenu(t *tags, root bool) menu {
	m := menu{object: send[objc.Object](send[objc.Object](class("NSMenu"), "alloc"), "initWithTitle:", ""), tags: t}
	send[objc.Void](m.object, "setAutoenablesItems:", false)
	if root {
		send[objc.Void](m.object, "setDelegate:", delegate())
	}
	return m
}

// at finds the item of a tag.
func (m *menu) at(tag int) (menubar.Item, bool) {
	it, ok := m.tags.items[tag]
	return it, ok
}

func sameRow(a, b menubar.Item) bool {
	return a.ID == b.ID && a.Arg == b.Arg && (a.Kind == menubar.Separator) == (b.Kind == menubar.Separator) && (a.Kind == menubar.Submenu) == (b.Kind == menubar.Submenu)
}

// update brings the menu to the given items.
func (m *menu) update(items []menubar.Item) {
	if !slices.EqualFunc(m.rows, items, func(r *rowItem, it menubar.Item) bool { return sameRow(r.last, it) }) {
		m.clear()
		for _, it := range items {
			m.add(it)
		}
		return
	}
	for i, it := range items {
		m.rows[i].set(it, false, m.tags)
	}
}

// clear takes all items out.
func (m *menu) clear() {
	send[objc.Void](m.object, "removeAllItems")
	for _, r := range m.rows {
		delete(m.tags.items, r.tag)
		if r.sub != nil {
			r.sub.clear()
			r.sub.object.Release()
		}
		r.object.Release()
	}
	m.rows = nil
}

func (m *menu) add(it menubar.Item) {
	r := &rowItem{tag: m.tags.give(it)}
	if it.Kind == menubar.Separator {
		r.object = send[objc.Object](class("NSMenuItem"), "separatorItem")
		r.object.Retain()
	} else {
		r.object = send[objc.Object](send[objc.Object](class("NSMenuItem"), "alloc"), "initWithTitle:action:keyEquivalent:", it.Title, objc.Sel("click:"), it.Key)
		send[objc.Void](r.object, "setTarget:", delegate())
		send[objc.Void](r.object, "setTag:", r.tag)
		send[objc.Void](r.object, "setIdentifier:", identifier(it))
		if it.Alternate {
			send[objc.Void](r.object, "setAlternate:", true)
			send[objc.Void](r.object, "setKeyEquivalentModifierMask:", uint(modifiers(it)))
		}
		if it.Kind == menubar.Submenu {
			sub := makeMenu(m.tags, false)
			r.sub = &sub
			send[objc.Void](r.object, "setSubmenu:", sub.object)
		}
	}
	r.set(it, true, m.tags)
	send[objc.Void](m.object, "addItem:", r.object)
	m.rows = append(m.rows, r)
}

// identifier names an item for tests and for assistive tools.
func identifier(it menubar.Item) string {
	if it.Arg == "" {
		return it.ID
	}
	return it.ID + " " + it.Arg
}

// modifiers of an alternate item: option, and command where it has a key.
func modifiers(it menubar.Item) int {
	if it.Key != "" {
		return optionKey | commandKey
	}
	return optionKey
}

// set changes what differs.
func (r *rowItem) set(it menubar.Item, fresh bool, t *tags) {
	old := r.last
	r.last = it
	t.items[r.tag] = it
	if fresh || old.Hidden != it.Hidden {
		send[objc.Void](r.object, "setHidden:", it.Hidden)
	}
	if it.Kind == menubar.Separator {
		return
	}
	if fresh || old.Title != it.Title || old.Tone != it.Tone {
		send[objc.Void](r.object, "setTitle:", it.Title)
		r.colour(it, old.Tone)
	}
	if it.Kind == menubar.Ribbon && !slices.Equal(old.Bars, it.Bars) {
		image := template(ribbon(it.Bars))
		send[objc.Void](r.object, "setImage:", image)
		image.Release() // the item keeps it
	}
	if fresh || old.Enabled != it.Enabled {
		send[objc.Void](r.object, "setEnabled:", it.Enabled)
	}
	if fresh || old.Check != it.Check {
		send[objc.Void](r.object, "setState:", map[menubar.Check]int{menubar.Unchecked: 0, menubar.Checked: 1, menubar.Mixed: -1}[it.Check])
	}
	if fresh && it.Hint != "" || old.Hint != it.Hint {
		send[objc.Void](r.object, "setToolTip:", it.Hint)
	}
	if r.sub != nil {
		r.sub.update(it.Items)
	}
}

// colour gives the title its tone; one that is plain is left to the system.
func (r *rowItem) colour(it menubar.Item, old menubar.Tone) {
	var colour objc.Object
	switch it.Tone {
	case menubar.Orange:
		colour = send[objc.Object](class("NSColor"), "systemOrangeColor")
	case menubar.Red:
		colour = send[objc.Object](class("NSColor"), "systemRedColor")
	case menubar.Grey:
		colour = send[objc.Object](class("NSColor"), "secondaryLabelColor")
	default:
		if old != menubar.Plain {
			send[objc.Void](r.object, "setAttributedTitle:", objc.Object{})
			send[objc.Void](r.object, "setTitle:", it.Title) // the line before took it along
		}
		return
	}
	const foreground = "NSColor" // NSForegroundColorAttributeName
	attributes := send[objc.Object](class("NSDictionary"), "dictionaryWithObject:forKey:", colour, foreground)
	text := send[objc.Object](send[objc.Object](class("NSAttributedString"), "alloc"), "initWithString:attributes:", it.Title, attributes)
	send[objc.Void](r.object, "setAttributedTitle:", text)
	text.Release() // the item keeps it
}
