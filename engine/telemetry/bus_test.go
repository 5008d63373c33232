package telemetry

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
)

func mustNext(t *testing.T, s *Subscription) Event {
	t.Helper()
	e, err := s.Next(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestBusDeliversInOrder(t *testing.T) {
	var b Bus
	b.Publish("early", 0) // nobody listens
	s := b.Subscribe(100)
	for i := range 50 {
		b.Publish("n", i)
	}
	for i := range 50 {
		if e := mustNext(t, s); e.Name != "n" || e.Data != i {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next gives %v, want the context's error", err)
	}
}

func TestSlowSubscriberLosesTheOldest(t *testing.T) {
	var b Bus
	slow, fast := b.Subscribe(4), b.Subscribe(64)
	for i := range 10 {
		b.Publish("n", i)
	}
	if e := mustNext(t, slow); e.Name != GapEvent || e.Data != (Gap{6}) {
		t.Fatalf("first event is %+v, want a gap of 6", e)
	}
	for i := 6; i < 8; i++ {
		if e := mustNext(t, slow); e.Data != i {
			t.Fatalf("event is %+v, want %d", e, i)
		}
	}
	for i := 10; i < 13; i++ {
		b.Publish("n", i)
	}
	if e := mustNext(t, slow); e.Data != (Gap{1}) { // 8 made room for 12
		t.Fatalf("event is %+v, want a gap of 1", e)
	}
	for i := 9; i < 13; i++ {
		if e := mustNext(t, slow); e.Data != i {
			t.Fatalf("event is %+v, want %d", e, i)
		}
	}
	for i := range 13 {
		if e := mustNext(t, fast); e.Data != i {
			t.Fatalf("the fast subscriber got %+v, want %d", e, i)
		}
	}
}

func TestBusEnds(t *testing.T) {
	var b Bus
	s, other := b.Subscribe(0), b.Subscribe(8)
	if b.Subscribers() != 2 {
		t.Errorf("%d subscribers", b.Subscribers())
	}
	b.Publish("last", 1)
	s.Close()
	s.Close()
	b.Publish("too late", 2)
	if e := mustNext(t, s); e.Data != 1 {
		t.Errorf("waiting event is %+v", e)
	}
	for range 2 {
		if _, err := s.Next(context.Background()); err != io.EOF {
			t.Errorf("Next gives %v, want EOF", err)
		}
	}
	b.Close()
	for i := 1; i <= 2; i++ {
		if e := mustNext(t, other); e.Data != i {
			t.Errorf("waiting event is %+v, want %d", e, i)
		}
	}
	for _, s := range []*Subscription{other, b.Subscribe(3)} {
		if _, err := s.Next(context.Background()); err != io.EOF {
			t.Errorf("after the bus closed, Next gives %v", err)
		}
	}
	b.Publish("nobody", 3)
	if b.Subscribers() != 0 {
		t.Errorf("%d subscribers", b.Subscribers())
	}
}

// TestBusUnderLoad checks, with several publishers and readers of different
// patience, that every reader can account for every event.
func TestBusUnderLoad(t *testing.T) {
	const publishers, each = 4, 2000
	var b Bus
	var readers, writers sync.WaitGroup
	for _, buffer := range []int{1, 3, 64, 20000} {
		s := b.Subscribe(buffer)
		readers.Go(func() {
			got, lost := 0, 0
			last := map[int]int{}
			for {
				e, err := s.Next(context.Background())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				if g, ok := e.Data.(Gap); ok {
					lost += g.Lost
					continue
				}
				got++
				from := e.Data.([2]int)
				if from[1] <= last[from[0]] {
					t.Errorf("event %v after %d", from, last[from[0]])
				}
				last[from[0]] = from[1]
			}
			if got+lost != publishers*each {
				t.Errorf("buffer %d: %d received and %d lost of %d", buffer, got, lost, publishers*each)
			}
		})
	}
	for p := range publishers {
		writers.Go(func() {
			for i := range each {
				b.Publish("n", [2]int{p, i + 1})
			}
		})
	}
	writers.Wait()
	b.Close()
	readers.Wait()
}

func BenchmarkPublish(b *testing.B) {
	var bus Bus
	for range 4 {
		bus.Subscribe(256) // nobody reads
	}
	r := &Round{}
	b.ReportAllocs()
	for b.Loop() {
		bus.Publish("round", r)
	}
}
