package models

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Places are the folders in which models lie. An empty string or list is none.
type Places struct {
	Hub      string   // the Hugging Face cache, the folder that holds models--org--name
	LMStudio []string // roots of publisher/model
	Folders  []string // configured roots: models, or publisher/model, or GGUF files
	Ollama   string   // the folder that holds manifests and blobs
}

// DefaultPlaces are where the programs of this user keep models, by their own
// environment variables, and the given folders. The last folder is the one
// that mlx-dspark converts models to.
func DefaultPlaces(folders ...string) Places {
	home, _ := os.UserHomeDir()
	p := Places{Hub: hubCache(), Folders: append(slices.Clone(folders), filepath.Join(home, ".cache", "mlx_dspark", "models"))}
	lmHome := filepath.Join(home, ".lmstudio")
	if text, err := os.ReadFile(filepath.Join(home, ".lmstudio-home-pointer")); err == nil {
		if dir := strings.TrimSpace(string(text)); filepath.IsAbs(dir) {
			lmHome = dir
		}
	}
	p.LMStudio = []string{filepath.Join(lmHome, "models"), filepath.Join(home, ".cache", "lm-studio", "models")}
	p.Ollama = expandPath(os.Getenv("OLLAMA_MODELS"))
	if p.Ollama == "" {
		p.Ollama = filepath.Join(home, ".ollama", "models")
	}
	return p
}

// hfHome is the folder of the hub library: HF_HOME, else below XDG_CACHE_HOME
// or ~/.cache.
func hfHome() string {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return expandPath(dir)
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".cache")
	}
	return expandPath(filepath.Join(cache, "huggingface"))
}

// hubCache is the model cache of the hub library.
func hubCache() string {
	for _, key := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(key); dir != "" {
			return expandPath(dir)
		}
	}
	return filepath.Join(hfHome(), "hub")
}

// expandPath replaces ~ and variables as the hub library does.
func expandPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		home, _ := os.UserHomeDir()
		path = home + rest
	}
	return os.ExpandEnv(path)
}

// repoFolder is the name of a repository's folder in the hub cache.
func repoFolder(repo string) string {
	return "models--" + strings.ReplaceAll(repo, "/", "--")
}

// repoOfFolder is the way back; ok is false for folders of other things.
func repoOfFolder(name string) (repo string, ok bool) {
	rest, ok := strings.CutPrefix(name, "models--")
	return strings.ReplaceAll(rest, "--", "/"), ok && rest != ""
}
