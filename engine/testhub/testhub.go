package testhub

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Commit is the revision that every repository is at.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Serve answers a request as a hub that has one repository with these files. Before
// a file's content content is asked, if it is not nil: it may wait, or answer by
// itself and return false; the headers are set by then.
func Serve(w http.ResponseWriter, r *http.Request, repo string, files map[string][]byte, content func(name string) bool) {
	path, info := strings.CutPrefix(r.URL.Path, "/api/models/")
	path, ours := strings.CutPrefix(strings.TrimPrefix(path, "/"), repo)
	name, _ := strings.CutPrefix(path, "/resolve/"+Commit+"/")
	switch text, known := files[name]; {
	case !ours || path != "" && path[0] != '/':
		missing(w, "RepoNotFound")
	case info:
		siblings := []map[string]any{}
		for name, text := range files {
			s := map[string]any{"rfilename": name, "size": len(text), "blobId": fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(text)), text...)))}
			if strings.HasSuffix(name, ".safetensors") {
				s["lfs"] = map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256(text)), "size": len(text)}
			}
			siblings = append(siblings, s)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"id": repo, "sha": Commit, "siblings": siblings}) // the client may be gone
	case !known:
		missing(w, "EntryNotFound")
	default:
		w.Header().Set("X-Repo-Commit", Commit)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		if content == nil || content(name) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
		}
	}
}

func missing(w http.ResponseWriter, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(http.StatusNotFound)
}
