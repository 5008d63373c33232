package models

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Request names what to download.
type Request struct {
	Repo     string // org/name
	Revision string // branch, tag or commit; "" = main
	// File picks a GGUF file of a repository that has several: its name, or a
	// part of it such as Q4_K_M. "" = the safetensors, else Q4_K_M.
	File string
	// Drafter says that no tokenizer is needed.
	Drafter bool
}

// Named is the request for org/name or org/name:file.
func Named(name string) Request {
	repo, file, _ := strings.Cut(name, ":")
	return Request{Repo: repo, File: file}
}

var (
	repoName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}$`)
	revisionName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}$`)
	shardName    = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.safetensors$`)
	splitGGUF    = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)
)

// OnHub reports that a name is one of the hub, org/name or org/name:file, and not a
// local name, a path or an address.
func OnHub(name string) bool {
	repo := Named(name).Repo
	return repoName.MatchString(repo) && !strings.Contains(repo, "--") && !strings.Contains(repo, "..") && !strings.HasSuffix(repo, ".git")
}

func (r *Request) check() error {
	if !OnHub(r.Repo) {
		return failure(ErrInvalid, "", nil, "%q is not the name of a model on the hub; it should look like mlx-community/Qwen3-4B-8bit", clip(r.Repo, 100))
	}
	if r.Revision == "" {
		r.Revision = "main"
	}
	if !revisionName.MatchString(r.Revision) || !isPlainPath(r.Revision) || strings.Contains(r.Revision, "..") {
		return failure(ErrInvalid, r.Repo, nil, "%q is not a revision; give a branch, a tag or a commit", clip(r.Revision, 100))
	}
	return nil
}

// smallFiles are what a load reads beside weights: configurations, tokenizers
// and chat templates.
var smallFiles = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja",
}

// maxSmallFile bounds the files of smallFiles; the largest tokenizers have a
// tenth of it.
const maxSmallFile = 512 << 20

// choose picks the files of a repository that a load of the request reads.
// model says what they are: "" for a folder, else the GGUF file.
func choose(r Request, all []repoFile) (files []repoFile, model string, err error) {
	var weights, ggufs, small []repoFile
	has := map[string]bool{}
	for _, f := range all {
		has[f.Path] = true
		base := path.Base(f.Path)
		switch {
		case !strings.Contains(f.Path, "/") && (strings.HasSuffix(base, ".safetensors") || base == "model.safetensors.index.json"):
			weights = append(weights, f)
		case strings.HasSuffix(strings.ToLower(base), ".gguf") && !strings.HasPrefix(base, "mmproj"):
			ggufs = append(ggufs, f)
		case isSmallFile(f.Path) && (!r.Drafter || f.Path == "config.json"):
			if f.Size > maxSmallFile {
				return nil, "", failure(ErrUnusable, r.Repo, nil, "%s has %s, which is no such file", f.Path, byteText(f.Size))
			}
			small = append(small, f)
		}
	}
	named := slices.DeleteFunc(slices.Clone(weights), func(f repoFile) bool { return !strings.HasPrefix(f.Path, "model") })
	switch {
	case r.File == "" && len(named) > 0 && has["config.json"]:
		// Other safetensors beside model*.safetensors are the same weights in
		// another packaging, or adapters.
		files = named
		if !r.Drafter && !has["tokenizer.json"] {
			return nil, "", failure(ErrUnusable, r.Repo, nil, "the repository has no tokenizer.json; choose a conversion of the model that has one, such as those of mlx-community")
		}
		return append(small, files...), "", nil
	case len(ggufs) > 0:
		files, err = chooseGGUF(r, ggufs)
		if err != nil {
			return nil, "", err
		}
		return files, files[0].Path, nil
	case r.File != "":
		return nil, "", failure(ErrNotFound, r.Repo, nil, "the repository has no GGUF files, so there is no %q", r.File)
	case len(named) > 0:
		return nil, "", failure(ErrUnusable, r.Repo, nil, "the repository has weights but no config.json; it is not a complete model")
	}
	for name := range has {
		if base := path.Base(name); strings.HasSuffix(base, ".bin") || strings.HasSuffix(base, ".pth") || strings.HasSuffix(base, ".pt") {
			return nil, "", failure(ErrUnusable, r.Repo, nil, "the weights are PyTorch files (%s), which may hold code and are not read; choose a conversion to safetensors or GGUF", base)
		}
	}
	return nil, "", failure(ErrUnusable, r.Repo, nil, "the repository holds no weights that Sparkbar reads (model*.safetensors or *.gguf)")
}

func isSmallFile(name string) bool {
	return slices.ContainsFunc(smallFiles, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok })
}

// chooseGGUF picks one GGUF model, with all parts of a split one.
func chooseGGUF(r Request, all []repoFile) ([]repoFile, error) {
	sets := map[string][]repoFile{} // by name without part numbers
	for _, f := range all {
		name := f.Path
		if m := splitGGUF.FindStringSubmatch(name); m != nil {
			name = m[1] + ".gguf"
		}
		sets[name] = append(sets[name], f)
	}
	var found []string
	want := strings.ToLower(r.File)
	for name := range sets {
		if low := strings.ToLower(name); low == want || low == want+".gguf" || sets[name][0].Path == r.File {
			found = []string{name}
			break
		} else if strings.Contains(low, want) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	if want == "" && len(found) > 1 {
		usual := slices.DeleteFunc(slices.Clone(found), func(n string) bool { return !strings.Contains(strings.ToUpper(n), "Q4_K_M") })
		if len(usual) == 1 {
			found = usual
		}
	}
	if len(found) != 1 {
		var names []string
		for name := range sets {
			names = append(names, name)
		}
		slices.Sort(names)
		if len(names) > 12 {
			names = append(names[:12], "…")
		}
		if len(found) == 0 {
			return nil, failure(ErrNotFound, r.Repo, nil, "no GGUF file matches %q; there are %s", r.File, strings.Join(names, ", "))
		}
		return nil, failure(ErrInvalid, r.Repo, nil, "the repository has several GGUF models, name one: %s", strings.Join(names, ", "))
	}
	set := sets[found[0]]
	slices.SortFunc(set, func(a, b repoFile) int { return strings.Compare(a.Path, b.Path) })
	if m := splitGGUF.FindStringSubmatch(set[0].Path); m != nil && fmt.Sprintf("%05d", len(set)) != m[3] {
		return nil, failure(ErrUnusable, r.Repo, nil, "the repository has %d of %s parts of %s", len(set), m[3], found[0])
	}
	return set, nil
}
