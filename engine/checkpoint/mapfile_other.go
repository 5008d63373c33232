//go:build !linux && !darwin

package checkpoint

import (
	"errors"
	"os"
)

func mayVanish(*os.File) bool { return true }

func mapPages(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func newPages(size int) []byte { return make([]byte, size) }

func freePages([]byte) error { return nil }

func dropPages([]byte) {}
