package engine

import (
	"context"
	"fmt"
	"sync"
)

// queue lets one generation run at a time and keeps the others waiting, fair
// between clients: whoever waits longest among the clients, taken in turn.
type queue struct {
	limit int

	mu      sync.Mutex
	busy    bool
	closed  bool
	clients []string // in turn; each has someone waiting
	waiting map[string][]chan struct{}
	n       int // waiting in all
}

// acquire waits for the turn; release must follow a nil error.
func (q *queue) acquire(ctx context.Context, client string) error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return errStopping()
	}
	if !q.busy {
		q.busy = true
		q.mu.Unlock()
		return nil
	}
	if q.n >= q.limit {
		n := q.n
		q.mu.Unlock()
		return &Error{Kind: ErrBusy, Message: fmt.Sprintf("%d requests are waiting already; try again later", n)}
	}
	turn := make(chan struct{})
	if q.waiting == nil {
		q.waiting = map[string][]chan struct{}{}
	}
	if len(q.waiting[client]) == 0 {
		q.clients = append(q.clients, client)
	}
	q.waiting[client] = append(q.waiting[client], turn)
	q.n++
	q.mu.Unlock()

	select {
	case <-turn:
	case <-ctx.Done():
		if q.leave(client, turn) {
			return &Error{Kind: ErrCancelled, Message: "the request was cancelled while it waited", Cause: context.Cause(ctx)}
		}
		<-turn // it was our turn just now
	}
	q.mu.Lock()
	closed := q.closed
	q.mu.Unlock()
	if closed {
		q.release()
		return errStopping()
	}
	return nil
}

// leave takes a waiting turn back; false if it was called already.
func (q *queue) leave(client string, turn chan struct{}) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, t := range q.waiting[client] {
		if t == turn {
			q.waiting[client] = append(q.waiting[client][:i:i], q.waiting[client][i+1:]...)
			q.n--
			if len(q.waiting[client]) == 0 {
				q.drop(client)
			}
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

// release ends a turn and calls the next client.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		q.busy = false
		return
	}
	client := q.clients[0]
	turn := q.waiting[client][0]
	q.waiting[client] = q.waiting[client][1:]
	q.n--
	if len(q.waiting[client]) == 0 {
		q.drop(client)
	} else {
		q.clients = append(q.clients[1:], client)
	}
	close(turn)
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
	if q.busy {
		running = 1
	}
	return running, q.n
}
