package engine

import (
	"context"
	"fmt"
	"sync"
)

// queue lets generations of one model run together as far as there is room, and
// keeps the others waiting, fair between clients: whoever waits longest among the
// clients, taken in turn. Nobody overtakes the one whose turn it is, so a large
// request comes to run once enough others have ended.
type queue struct {
	limit int

	mu        sync.Mutex
	closed    bool
	on        any // whose generations run, or ran last
	running   int
	positions int                  // that they may come to hold
	clients   []string             // in turn; each has someone waiting
	waiting   map[string][]*waiter // by client
	n         int                  // waiting in all
}

// claim is what a generation needs to run.
type claim struct {
	on        any // the model
	jobs      int // that it may run at once
	room      int // positions of its cache
	positions int // that this one may come to hold
}

// waiter is a generation that wants to run.
type waiter struct {
	claim
	turn chan struct{} // closed when it may
}

// acquire waits for the turn of a generation; release must be called at its end.
func (q *queue) acquire(ctx context.Context, client string, c claim) (release func(), err error) {
	w := &waiter{c, make(chan struct{})}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, errStopping()
	}
	if q.n > 0 || !q.fits(w) {
		if q.n >= q.limit {
			n := q.n
			q.mu.Unlock()
			return nil, &Error{Kind: ErrBusy, Message: fmt.Sprintf("%d requests are waiting already; try again later", n)}
		}
		if q.waiting == nil {
			q.waiting = map[string][]*waiter{}
		}
		if len(q.waiting[client]) == 0 {
			q.clients = append(q.clients, client)
		}
		q.waiting[client] = append(q.waiting[client], w)
		q.n++
	} else {
		q.run(w)
	}
	q.mu.Unlock()

	select {
	case <-w.turn:
	case <-ctx.Done():
		if q.leave(client, w) {
			return nil, &Error{Kind: ErrCancelled, Message: "the request was cancelled while it waited", Cause: context.Cause(ctx)}
		}
		<-w.turn // it was our turn just now
	}
	release = func() { q.release(w) }
	q.mu.Lock()
	closed := q.closed
	q.mu.Unlock()
	if closed {
		release()
		return nil, errStopping()
	}
	return release, nil
}

// fits reports whether a generation can run beside those that do.
func (q *queue) fits(w *waiter) bool {
	if q.running == 0 {
		return true
	}
	return q.on == w.on && q.running < w.jobs && q.positions+w.positions <= w.room
}

func (q *queue) run(w *waiter) {
	q.on = w.on
	q.running++
	q.positions += w.positions
	close(w.turn)
}

// call lets those run whose turn it is, while they fit.
func (q *queue) call() {
	for q.n > 0 {
		client := q.clients[0]
		w := q.waiting[client][0]
		if !q.fits(w) {
			return
		}
		q.waiting[client] = q.waiting[client][1:]
		q.n--
		if len(q.waiting[client]) == 0 {
			q.drop(client)
		} else {
			q.clients = append(q.clients[1:], client)
		}
		q.run(w)
	}
}

// leave takes a generation out that waits; false if it was called already.
func (q *queue) leave(client string, w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, x := range q.waiting[client] {
		if x == w {
			q.waiting[client] = append(q.waiting[client][:i:i], q.waiting[client][i+1:]...)
			q.n--
			if len(q.waiting[client]) == 0 {
				q.drop(client)
			}
			q.call() // the next one may fit
			return true
		}
	}
	return false
}

func (q *queue) drop(client string) {
	delete(q.waiting, client)
	for i, c := range q.clients {
		if c == client {
			q.clients = append(q.clients[:i], q.clients[i+1:]...)
			return
		}
	}
}

// release ends a generation and calls the next ones.
func (q *queue) release(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.positions -= w.positions
	q.call()
}

// close refuses newcomers and those who wait.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
}

// counts returns how many run and how many wait.
func (q *queue) counts() (running, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running, q.n
}
