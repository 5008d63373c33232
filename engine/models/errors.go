package models

import "fmt"

// ErrorKind says what stopped a download.
type ErrorKind string

// The kinds of errors.
const (
	ErrInvalid   ErrorKind = "invalid"   // the request itself
	ErrNotFound  ErrorKind = "not_found" // no such repository, revision or file
	ErrDenied    ErrorKind = "denied"    // gated, private, or a bad token
	ErrOffline   ErrorKind = "offline"   // offline mode, and the model is not here
	ErrNetwork   ErrorKind = "network"   // the hub cannot be reached or answers nonsense
	ErrDiskFull  ErrorKind = "disk_full" // not enough room
	ErrCorrupt   ErrorKind = "corrupt"   // bytes that do not have the promised hash
	ErrUnusable  ErrorKind = "unusable"  // a repository that Sparkbar cannot run
	ErrCancelled ErrorKind = "cancelled"
	ErrFile      ErrorKind = "file" // the local file system
)

// Error is a failed download: what happened and what to do about it.
type Error struct {
	Kind    ErrorKind
	Repo    string
	Message string
	Cause   error
}

func (e *Error) Error() string {
	if e.Repo == "" {
		return e.Message
	}
	return e.Repo + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.Cause }

func failure(kind ErrorKind, repo string, cause error, format string, args ...any) *Error {
	return &Error{Kind: kind, Repo: repo, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// byteText writes a size as people read it, in decimal units as disks and
// download pages use them.
func byteText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}
