package telemetry

import (
	"context"
	"io"
	"sync"
)

// Event is a named message of the event stream. Data is shared by all
// subscribers and must not be changed after publishing.
type Event struct {
	Name string
	Data any
}

// GapEvent is the name of the event that stands where events were lost; its
// data is a [Gap].
const GapEvent = "gap"

// Gap says how many events a slow subscriber lost at this place.
type Gap struct {
	Lost int `json:"lost"`
}

// Bus delivers events to any number of subscribers. Publishing never blocks
// and never waits for a subscriber: one that falls behind loses its oldest
// events and finds a [Gap] in their place. The zero value is ready. Safe for
// concurrent use.
type Bus struct {
	mu     sync.Mutex
	subs   map[*Subscription]struct{}
	closed bool
}

// maxBuffer bounds what one subscriber can hold back.
const maxBuffer = 1 << 14

// Subscribe starts receiving the events published from now on, at most buffer
// of them waiting (at least 1). Close the subscription when done.
func (b *Bus) Subscribe(buffer int) *Subscription {
	s := &Subscription{bus: b, limit: min(max(buffer, 1), maxBuffer), ready: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		s.end()
		return s
	}
	if b.subs == nil {
		b.subs = map[*Subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	return s
}

// Publish hands an event to every subscriber.
func (b *Bus) Publish(name string, data any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.push(Event{name, data})
	}
}

// Subscribers returns how many subscriptions are open.
func (b *Bus) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs)
}

// Close ends all subscriptions once they have delivered what is waiting.
// Later events go nowhere.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for s := range b.subs {
		s.end()
	}
	clear(b.subs)
}

// Subscription is one reader of a [Bus].
type Subscription struct {
	bus   *Bus
	limit int
	ready chan struct{} // holds a token while Next has something to look at

	mu    sync.Mutex
	queue []Event // a ring once it has reached limit
	head  int     // of the oldest event
	count int
	lost  int // events dropped before the oldest one
	ended bool
}

func (s *Subscription) push(e Event) {
	s.mu.Lock()
	switch {
	case s.count == s.limit:
		s.queue[s.head] = e
		s.head = (s.head + 1) % s.limit
		s.lost++
	case s.count < len(s.queue):
		s.queue[(s.head+s.count)%len(s.queue)] = e
		s.count++
	default:
		s.grow()
		s.queue[s.count] = e
		s.count++
	}
	s.mu.Unlock()
	s.wake()
}

// grow doubles the ring, up to the limit, and puts its oldest event first.
func (s *Subscription) grow() {
	bigger := make([]Event, min(max(8, 2*len(s.queue)), s.limit))
	n := copy(bigger, s.queue[s.head:])
	copy(bigger[n:], s.queue[:s.head])
	s.queue, s.head = bigger, 0
}

func (s *Subscription) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next waits for the next event. It returns io.EOF after the bus or the
// subscription was closed and everything waiting was delivered, or the
// context's error. It must not be called by two goroutines at once.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		if e, ok, err := s.pop(); ok || err != nil {
			return e, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

func (s *Subscription) pop() (e Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lost > 0:
		e = Event{GapEvent, Gap{s.lost}}
		s.lost = 0
		return e, true, nil
	case s.count > 0:
		e = s.queue[s.head]
		s.queue[s.head] = Event{}
		s.head = (s.head + 1) % len(s.queue)
		s.count--
		return e, true, nil
	case s.ended:
		return Event{}, false, io.EOF
	}
	return Event{}, false, nil
}

func (s *Subscription) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.wake()
}

// Close ends the subscription. Waiting events can still be read.
func (s *Subscription) Close() {
	s.bus.mu.Lock()
	delete(s.bus.subs, s)
	s.bus.mu.Unlock()
	s.end()
}
