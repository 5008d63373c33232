package models

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sparkbar/engine/wholefile"
)

// maxEntries bounds how many entries of one folder are looked at.
const maxEntries = 20000

// scanPlaces looks at every place. Nothing in a folder can stop the scan: what
// cannot be read is left out or listed with the reason.
func scanPlaces(p Places, in *inspector) []Model {
	var list []Model
	if p.Hub != "" {
		for _, name := range folderNames(p.Hub) {
			if repo, ok := repoOfFolder(name); ok {
				list = append(list, scanRepo(p.Hub, repo, in)...)
			}
		}
	}
	for _, root := range p.LMStudio {
		list = append(list, scanRoot(root, SourceLMStudio, in)...)
	}
	for _, root := range p.Folders {
		list = append(list, scanRoot(root, SourceFolder, in)...)
	}
	if p.Ollama != "" {
		list = append(list, scanOllama(p.Ollama, in)...)
	}
	return list
}

// folderNames lists the folders in a folder, links to folders included, but
// hidden ones not.
func folderNames(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(maxEntries)
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !e.IsDir() {
			if e.Type()&os.ModeSymlink == 0 {
				continue
			}
			if info, err := os.Stat(filepath.Join(dir, e.Name())); err != nil || !info.IsDir() {
				continue
			}
		}
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// scanRepo looks at one repository of a hub cache: at the snapshot that main
// points to or, when that cannot be loaded, at the newest one that can.
func scanRepo(cache, repo string, in *inspector) []Model {
	folder := filepath.Join(cache, repoFolder(repo))
	var commits []string
	times := map[string]int64{}
	for _, name := range folderNames(filepath.Join(folder, "snapshots")) {
		if info, err := os.Stat(filepath.Join(folder, "snapshots", name)); err == nil {
			commits = append(commits, name)
			times[name] = info.ModTime().UnixNano()
		}
	}
	main, _ := wholefile.Read(filepath.Join(folder, "refs", "main"), 100)
	slices.SortFunc(commits, func(a, b string) int {
		if (a == string(main)) != (b == string(main)) {
			return order(a == string(main))
		}
		return order(times[a] > times[b])
	})
	var shown []Model
	for _, commit := range commits {
		list := scanSnapshot(folder, commit, repo, in)
		if slices.ContainsFunc(list, Model.Loadable) {
			return list
		}
		if shown == nil {
			shown = list
		}
	}
	if shown == nil {
		shown = unfinished(folder, repo)
	}
	return shown
}

// scanSnapshot looks at one snapshot of a repository.
func scanSnapshot(folder, commit, repo string, in *inspector) []Model {
	dir := filepath.Join(folder, "snapshots", commit)
	pending, done, total := readManifest(folder, commit)
	list := in.folder(dir)
	for _, sub := range folderNames(dir) { // repositories keep each quantization in a folder of its own
		for _, m := range in.folder(filepath.Join(dir, sub)) {
			if m.Kind == KindGGUF {
				list = append(list, m)
			}
		}
	}
	ggufs := 0
	for _, m := range list {
		if m.Kind == KindGGUF {
			ggufs++
		}
	}
	if len(list) == 0 && pending == nil {
		list = []Model{{Path: dir, Kind: KindFolder, Reason: "nothing here that Sparkbar reads: no config.json with safetensors, and no GGUF file"}}
	}
	for i := range list {
		m := &list[i]
		m.ID, m.Source, m.Revision = repo, SourceHub, commit
		if m.Kind == KindGGUF && (ggufs > 1 || len(list) > 1) {
			rel, _ := filepath.Rel(dir, m.Path)
			m.ID = repo + "/" + filepath.ToSlash(rel)
		}
		if pending != nil && (m.Kind == KindFolder || pending[m.Path]) {
			m.Complete, m.Reason = false, unfinishedText(done, total)
		}
	}
	if len(list) == 0 {
		list = unfinished(folder, repo)
	}
	return list
}

// readManifest returns which files of a snapshot are still to come, nil when
// none are, and how many bytes there are of how many.
func readManifest(folder, commit string) (pending map[string]bool, done, total int64) {
	text, err := wholefile.Read(filepath.Join(folder, manifestPrefix+commit+".json"), maxManifest)
	var m manifest
	if err != nil || json.Unmarshal(text, &m) != nil {
		return nil, 0, 0
	}
	for _, f := range m.Files {
		if !isPlainPath(f.Path) || f.Size < 0 || !isHex(f.ETag, 40) && !isHex(f.ETag, 64) {
			continue
		}
		total += f.Size
		path := filepath.Join(folder, "snapshots", commit, filepath.FromSlash(f.Path))
		blob := filepath.Join(folder, "blobs", f.ETag)
		switch {
		case hasSize(path, f.Size):
			done += f.Size
			continue
		case hasSize(blob, f.Size):
			done += f.Size
		default:
			done += allocated(blob + dataSuffix)
		}
		if pending == nil {
			pending = map[string]bool{}
		}
		pending[path] = true
	}
	return pending, done, total
}

func unfinishedText(done, total int64) string {
	return fmt.Sprintf("the download is not finished: %s of %s are here; download it again to resume", byteText(done), byteText(total))
}

// unfinished describes a repository folder without any snapshot.
func unfinished(folder, repo string) []Model {
	m := Model{ID: repo, Path: folder, Kind: KindFolder, Source: SourceHub, Reason: "no file of the model has arrived; download it again"}
	found, _ := filepath.Glob(filepath.Join(folder, manifestPrefix+"*.json"))
	for _, path := range found {
		commit := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), manifestPrefix), ".json")
		if pending, done, total := readManifest(folder, commit); pending != nil {
			m.Reason, m.Revision = unfinishedText(done, total), commit
			return []Model{m}
		}
	}
	if started, _ := filepath.Glob(filepath.Join(folder, "blobs", "*")); len(started) == 0 {
		return nil // the hub library leaves empty folders after failed look-ups
	}
	return []Model{m}
}

// scanRoot looks at a folder of models: models themselves, GGUF files, and
// publishers with models below them. The root may be a model.
func scanRoot(root string, source Source, in *inspector) []Model {
	var list []Model
	add := func(dir, id string) bool {
		found := in.folder(dir)
		for _, m := range found {
			m.ID, m.Source = id, source
			if m.Kind == KindGGUF && (len(found) > 1 || id == "") {
				m.ID = strings.Trim(id+"/"+strings.TrimSuffix(filepath.Base(m.Path), filepath.Ext(m.Path)), "/")
			}
			if m.ID == "" {
				m.ID = filepath.Base(root)
			}
			list = append(list, m)
		}
		return slices.ContainsFunc(found, func(m Model) bool { return m.Kind == KindFolder })
	}
	if add(root, "") {
		return list
	}
	for _, name := range folderNames(root) {
		n := len(list)
		add(filepath.Join(root, name), name)
		if len(list) > n {
			continue
		}
		for _, below := range folderNames(filepath.Join(root, name)) {
			add(filepath.Join(root, name, below), name+"/"+below)
		}
	}
	return list
}

// ollamaManifest is the part of an Ollama (OCI) manifest that matters.
type ollamaManifest struct {
	Layers []struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int64  `json:"size"`
	} `json:"layers"`
}

// scanOllama looks at the models of Ollama: manifests/host/namespace/name/tag
// name GGUF blobs. Nothing there is ever changed.
func scanOllama(root string, in *inspector) []Model {
	var list []Model
	manifests := filepath.Join(root, "manifests")
	_ = filepath.WalkDir(manifests, func(path string, e os.DirEntry, err error) error {
		if err != nil || len(list) >= maxEntries {
			return nil
		}
		rel, _ := filepath.Rel(manifests, path)
		parts := strings.Split(filepath.ToSlash(rel), "/")
		if e.IsDir() {
			if len(parts) >= 5 || strings.HasPrefix(e.Name(), ".") && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if len(parts) < 4 || !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			return nil
		}
		id := strings.Join(parts[:len(parts)-1], "/") + ":" + parts[len(parts)-1]
		id = strings.TrimPrefix(strings.TrimPrefix(id, "registry.ollama.ai/"), "library/")
		if m, ok := ollamaModel(root, path, in); ok {
			m.ID, m.Source = id, SourceOllama
			list = append(list, m)
		}
		return nil
	})
	return list
}

func ollamaModel(root, path string, in *inspector) (Model, bool) {
	text, err := wholefile.Read(path, 1<<20)
	var manifest ollamaManifest
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return Model{}, false
	}
	for _, layer := range manifest.Layers {
		sum, ok := strings.CutPrefix(layer.Digest, "sha256:")
		if layer.MediaType != "application/vnd.ollama.image.model" || !ok || !isHex(sum, 64) {
			continue
		}
		blob := filepath.Join(root, "blobs", "sha256-"+sum)
		m := in.gguf(blob, nil)
		if !hasSize(blob, layer.Size) && m.Reason == "" {
			m.Complete, m.Reason = false, "Ollama has not finished downloading it"
		}
		return m, true
	}
	return Model{}, false // an embedding of another format, or a model in the cloud
}
