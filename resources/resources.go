package resources

import (
	"embed"
	"io/fs"
	"path"
)

//go:embed demo
var demo embed.FS

// Demo returns the files of the demo chat model and of its DSpark drafter, by
// name. They were trained from a corpus of our own; see demo/README.md.
func Demo() (target, dspark map[string][]byte) { return files("demo/chat"), files("demo/dspark") }

// DemoDFlash returns the files of the demo's DFlash drafter.
func DemoDFlash() map[string][]byte { return files("demo/dflash") }

//go:embed web/dist
var web embed.FS

// Web returns the dashboard: index.html and the files that it refers to.
func Web() fs.FS {
	f, err := fs.Sub(web, "web/dist")
	if err != nil {
		panic(err) // embedded at build time
	}
	return f
}

func files(dir string) map[string][]byte {
	out := map[string][]byte{}
	entries, err := fs.ReadDir(demo, dir)
	if err != nil {
		panic(err) // embedded at build time
	}
	for _, e := range entries {
		b, err := demo.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			panic(err)
		}
		out[e.Name()] = b
	}
	return out
}
