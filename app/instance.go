package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// single makes this process the only one of its kind in the folder dir: it
// holds a lock and a socket there until close is called. If another process has
// them, that one is asked to show itself and first is false. show is called
// when a later process asks.
func single(dir string, show func()) (first bool, end func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, nil, err
	}
	socket := filepath.Join(dir, "socket")
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, nil, err
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		defer lock.Close()
		c, err := net.DialTimeout("unix", socket, 2*time.Second)
		if err != nil {
			return false, nil, fmt.Errorf("another Sparkbar runs and does not answer: %w", err)
		}
		defer c.Close()
		_, err = io.WriteString(c, "open\n")
		return false, nil, err
	}
	// The lock is ours, so a socket that is there belongs to nobody.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		lock.Close()
		return false, nil, err
	}
	old := syscall.Umask(0o177)
	ln, err := net.Listen("unix", socket)
	syscall.Umask(old)
	if err != nil {
		lock.Close()
		return false, nil, err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			line := make([]byte, 5)
			_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // a socket takes deadlines
			if _, err := io.ReadFull(c, line); err == nil && string(line) == "open\n" {
				show()
			}
			c.Close()
		}
	}()
	return true, func() { ln.Close(); lock.Close() }, nil
}
