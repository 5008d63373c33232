package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMain keeps the tests away from this machine's models and settings.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sparkbar-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for key, value := range map[string]string{"SPARKBAR_CONFIG": filepath.Join(dir, "config.yaml"), "HF_HUB_CACHE": filepath.Join(dir, "hub"),
		"OLLAMA_MODELS": filepath.Join(dir, "ollama"), "SPARKBAR_MEMORY_BANDWIDTH": "10", "SPARKBAR_PREFIX_CACHE_DIR": filepath.Join(dir, "prefixes"), "SPARKBAR_CALIBRATIONS": filepath.Join(dir, "calibration.json")} {
		os.Setenv(key, value)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}
