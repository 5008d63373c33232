package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/gdamore/tcell/v2"
	"github.com/spf13/cobra"

	"sparkbar/app/menubar"
	"sparkbar/httpapi/client"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch and steer a server in the terminal",
		Long: "Watch and steer a running server in the terminal: the menu of the menu bar as a page.\n" +
			"Arrows move, Enter clicks or opens, Left closes; single keys are shown beside their item.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := bind(cmd)
			if err != nil {
				return err
			}
			screen, err := tcell.NewScreen()
			if err != nil {
				return fmt.Errorf("this terminal cannot show a page: %w", err)
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return top(ctx, screen, v.GetString("url"), v.GetString("key"))
		},
	}
	f := cmd.Flags()
	f.String("url", "http://127.0.0.1:8080", "server to watch")
	f.String("key", "", "API key of that server")
	return cmd
}

// top runs the page until the user closes it or ctx ends.
func top(ctx context.Context, screen tcell.Screen, base, key string) error {
	c, err := client.New(base, key)
	if err != nil {
		return &usageError{err}
	}
	u, err := url.Parse(base)
	if err != nil {
		return &usageError{err} // client.New has parsed it before
	}
	where := menubar.ServerState{Running: true, Key: key}
	if where.Port, err = strconv.Atoi(u.Port()); err != nil {
		where.Port = map[string]int{"http": 80, "https": 443}[u.Scheme]
	}
	if h := u.Hostname(); h != "127.0.0.1" && h != "localhost" && h != "::1" {
		where.LAN, where.Protected = strings.TrimSuffix(strings.TrimRight(base, "/"), "/v1"), true // whether it is, only its owner knows
	}
	if err := screen.Init(); err != nil {
		return fmt.Errorf("this terminal cannot show a page: %w", err)
	}
	defer screen.Fini()
	ctx, cancel := context.WithCancel(ctx)
	p := &page{screen: screen, opened: map[string]bool{}, quit: cancel}
	p.menu = menubar.New(menubar.Options{Client: c, Host: p, Where: where, Installed: installed, Changed: p.redraw})
	var live sync.WaitGroup
	live.Go(func() { p.menu.Run(ctx) })
	defer live.Wait()
	defer cancel()
	p.menu.Open()
	events := make(chan tcell.Event, 16)
	go screen.ChannelEvents(events, ctx.Done())
	p.draw()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case *tcell.EventKey:
				p.key(e)
			case *tcell.EventResize:
				screen.Sync()
			}
			p.draw()
		}
	}
}

// page is the menu as lines of text. It is the Host of its Controller.
type page struct {
	screen tcell.Screen
	menu   *menubar.Controller
	quit   func()

	mu     sync.Mutex
	opened map[string]bool // submenus
	at     string          // the chosen line
	dialog *menubar.Dialog
	button int
}

// line is a visible row.
type line struct {
	menubar.Item
	depth int
	key   rune
}

func (l line) name() string { return l.ID + "\x00" + l.Arg }

// shortcuts are the single keys of the page.
var shortcuts = map[string]rune{
	"cancel": 'x', "unload": 'u', "reload": 'l', "models": 'm', "decoding": 'd', "address": 'a', "copy": 'c',
	"connect": 'k', "requests": 'r', "race": 'p', "check": 't', "warning": 'w', "about": 'v', "diagnostics": 'g', "quit": 'q',
}

// lines flattens the menu. The lock is held.
func (p *page) lines(tree []menubar.Item, depth int) []line {
	var out []line
	for _, it := range tree {
		if it.Hidden {
			continue
		}
		l := line{it, depth, 0}
		if depth == 0 {
			l.key = shortcuts[it.ID]
		}
		out = append(out, l)
		if it.Kind == menubar.Submenu && p.opened[l.name()] {
			out = append(out, p.lines(it.Items, depth+1)...)
		}
	}
	return out
}

func usable(l line) bool {
	return l.Enabled && (l.Kind == menubar.Command || l.Kind == menubar.Submenu)
}

// key carries out a key press.
func (p *page) key(e *tcell.EventKey) {
	_, tree := p.menu.View()
	p.mu.Lock()
	if p.dialog != nil {
		answer, done := p.dialogKey(e)
		p.mu.Unlock()
		if done {
			p.menu.Answer(answer)
		}
		return
	}
	lines := p.lines(tree, 0)
	i := p.index(lines)
	var click *line
	switch k := e.Key(); {
	case k == tcell.KeyCtrlC || k == tcell.KeyEscape:
		p.mu.Unlock()
		p.quit()
		return
	case k == tcell.KeyUp || k == tcell.KeyDown:
		step := 1
		if k == tcell.KeyUp {
			step = -1
		}
		for j := i + step; j >= 0 && j < len(lines); j += step {
			if usable(lines[j]) {
				p.at = lines[j].name()
				break
			}
		}
	case k == tcell.KeyLeft && i >= 0:
		for ; i > 0 && !(lines[i].Kind == menubar.Submenu && p.opened[lines[i].name()]); i-- {
		}
		if lines[i].Kind == menubar.Submenu {
			p.at = lines[i].name()
			delete(p.opened, p.at)
		}
	case (k == tcell.KeyEnter || k == tcell.KeyRight) && i >= 0:
		click = &lines[i]
		if k == tcell.KeyRight && click.Kind != menubar.Submenu {
			click = nil
		}
	case k == tcell.KeyRune:
		for j := range lines {
			if lines[j].key == e.Rune() && usable(lines[j]) {
				p.at = lines[j].name()
				click = &lines[j]
			}
		}
	}
	if click != nil && click.Kind == menubar.Submenu {
		if p.opened[click.name()] {
			delete(p.opened, click.name())
		} else {
			p.opened[click.name()] = true
		}
		click = nil
	}
	p.mu.Unlock()
	if click != nil {
		p.menu.Click(click.ID, click.Arg)
	}
}

// index finds the chosen line, or the first that can be chosen; -1 = none. The
// lock is held.
func (p *page) index(lines []line) int {
	first := -1
	for i, l := range lines {
		if l.name() == p.at {
			return i
		}
		if first < 0 && usable(l) {
			first = i
		}
	}
	if first >= 0 {
		p.at = lines[first].name()
	}
	return first
}

// dialogKey moves in a dialog; done means that answer was chosen. The lock is held.
func (p *page) dialogKey(e *tcell.EventKey) (answer int, done bool) {
	n := len(p.dialog.Buttons)
	switch k := e.Key(); {
	case k == tcell.KeyEscape || k == tcell.KeyCtrlC:
		p.dialog = nil
		return -1, true
	case k == tcell.KeyEnter:
		p.dialog = nil
		return p.button, true
	case k == tcell.KeyUp || k == tcell.KeyLeft:
		p.button = (p.button + n - 1) % n
	case k == tcell.KeyDown || k == tcell.KeyRight || k == tcell.KeyTab:
		p.button = (p.button + 1) % n
	case k == tcell.KeyRune && e.Rune() >= '1' && int(e.Rune()-'1') < n:
		p.dialog = nil
		return int(e.Rune() - '1'), true
	}
	return 0, false
}

// redraw asks the loop for a drawing; it never waits.
func (p *page) redraw() { _ = p.screen.PostEvent(tcell.NewEventInterrupt(nil)) } // a full queue draws anyway

func (p *page) draw() {
	title, tree := p.menu.View()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.screen
	s.Clear()
	_, height := s.Size()
	plain := tcell.StyleDefault
	s.PutStrStyled(1, 0, menubar.App+"  "+title.Text, plain.Bold(true))
	lines := p.lines(tree, 0)
	chosen := p.index(lines)
	room := max(height-2, 1)
	from := 0
	if chosen >= room {
		from = chosen - room + 1
	}
	for i, l := range lines[from:] {
		if i >= room {
			break
		}
		p.drawLine(l, 2+i-0, from+i == chosen && p.dialog == nil)
	}
	if p.dialog != nil {
		p.drawDialog()
	}
	s.Show()
}

func (p *page) drawLine(l line, y int, chosen bool) {
	style := tcell.StyleDefault
	switch l.Tone {
	case menubar.Orange:
		style = style.Foreground(tcell.ColorOrange)
	case menubar.Red:
		style = style.Foreground(tcell.ColorRed)
	case menubar.Grey:
		style = style.Dim(true)
	}
	text := l.Title
	switch {
	case l.Kind == menubar.Separator:
		text = strings.Repeat("─", 40)
		style = style.Dim(true)
	case l.Kind == menubar.Ribbon:
		text = ribbon(l.Bars)
	case l.Kind == menubar.Submenu && p.opened[l.name()]:
		text += " ▾"
	case l.Kind == menubar.Submenu:
		text += " ▸"
	}
	if l.Kind == menubar.Command && !l.Enabled {
		style = style.Dim(true)
		if l.Hint != "" {
			text += "  (" + l.Hint + ")"
		}
	}
	mark := " "
	switch l.Check {
	case menubar.Checked:
		mark = "✓"
	case menubar.Mixed:
		mark = "–"
	}
	if chosen {
		style = style.Reverse(true)
	}
	if l.key != 0 && usable(l) {
		p.screen.PutStrStyled(1, y, string(l.key), tcell.StyleDefault.Bold(true))
	}
	p.screen.PutStrStyled(3+2*l.depth, y, mark+" "+text, style)
}

// ribbon draws rounds as bars; lookup rounds are marked below by a lighter bar.
func ribbon(bars []menubar.Bar) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, x := range bars {
		b.WriteRune(levels[min(max(x.Committed-1, 0), len(levels)-1)])
	}
	return b.String()
}

func (p *page) drawDialog() {
	d := p.dialog
	width, height := p.screen.Size()
	rows := append([]string{d.Title, ""}, strings.Split(d.Text, "\n")...)
	rows = append(rows, "")
	first := len(rows)
	for i, b := range d.Buttons {
		rows = append(rows, fmt.Sprintf("%d  %s", i+1, b.Title))
	}
	y := max((height-len(rows))/2, 0)
	for i, r := range rows {
		style := tcell.StyleDefault
		if i == 0 {
			style = style.Bold(true)
		}
		if i == first+p.button {
			style = style.Reverse(true)
		}
		p.screen.PutStrStyled(0, y+i, strings.Repeat(" ", width), tcell.StyleDefault)
		p.screen.PutStrStyled(4, y+i, r, style)
	}
}

// What follows makes the page a menubar.Host. A terminal has a pasteboard and
// can ask; the rest needs a desktop.

var errNoDesktop = errors.New("a terminal cannot do this")

func (p *page) Features() menubar.HostFeatures { return menubar.HostFeatures{} }

func (p *page) Copy(text string) error { p.screen.SetClipboard([]byte(text)); return nil }

func (p *page) Open(string) error        { return errNoDesktop }
func (p *page) Browse(string) error      { return errNoDesktop }
func (p *page) Reveal(string) error      { return errNoDesktop }
func (p *page) Trash(string) error       { return errNoDesktop }
func (p *page) Log() error               { return errNoDesktop }
func (p *page) Edit(string) error        { return errNoDesktop }
func (p *page) SetLogin(bool) error      { return errNoDesktop }
func (p *page) LoginSettings() error     { return errNoDesktop }
func (p *page) Login() menubar.LoginItem { return menubar.LoginUnavailable }
func (p *page) Awake(bool)               {}
func (p *page) Battery() int             { return -1 }
func (p *page) Quit(bool)                { p.quit() }
func (p *page) Notify(a, b string) error { _ = p.screen.Beep(); return nil } // the page shows what it is about
func (p *page) Ask(d menubar.Dialog) {
	p.mu.Lock()
	p.dialog, p.button = &d, 0
	p.mu.Unlock()
	p.redraw()
}
