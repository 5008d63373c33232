package packaging

import (
	"debug/macho"
	"fmt"
	"os"
	"slices"
)

// Load commands that debug/macho has no name for.
const (
	lcCodeSignature = 0x1d
	lcBuildVersion  = 0x32
	lcLoadWeakDylib = 0x80000018
)

// Import is a symbol that a binary expects from a library.
type Import struct {
	Symbol  string
	Library string // install name; "" = looked up in all
	Weak    bool
}

// MachO is what an executable for macOS says about itself.
type MachO struct {
	Arch      string // arm64, amd64
	Size      int64
	Libraries []string // install names, in the order of their ordinals
	Imports   []Import
	MinOS     string // minimum system
	SDK       string
	Signed    bool
	PIE       bool
}

// ReadMachO reads a thin 64-bit executable.
func ReadMachO(path string) (*MachO, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := macho.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	m := &MachO{Size: info.Size(), PIE: f.Flags&macho.FlagPIE != 0}
	switch f.Cpu {
	case macho.CpuArm64:
		m.Arch = "arm64"
	case macho.CpuAmd64:
		m.Arch = "amd64"
	default:
		return nil, fmt.Errorf("%s is for the processor %v", path, f.Cpu)
	}
	if f.Type != macho.TypeExec {
		return nil, fmt.Errorf("%s is no executable", path)
	}
	for _, l := range f.Loads {
		raw := l.Raw()
		if len(raw) < 8 {
			return nil, fmt.Errorf("%s: a load command is cut off", path)
		}
		switch cmd := f.ByteOrder.Uint32(raw); cmd {
		case uint32(macho.LoadCmdDylib), lcLoadWeakDylib:
			if len(raw) < 24 {
				return nil, fmt.Errorf("%s: a library command is cut off", path)
			}
			at := f.ByteOrder.Uint32(raw[8:])
			if at >= uint32(len(raw)) {
				return nil, fmt.Errorf("%s: a library has no name", path)
			}
			name := raw[at:]
			if end := slices.Index(name, 0); end >= 0 {
				name = name[:end]
			}
			m.Libraries = append(m.Libraries, string(name))
		case lcBuildVersion:
			if len(raw) < 20 {
				return nil, fmt.Errorf("%s: the build version is cut off", path)
			}
			m.MinOS, m.SDK = dotted(f.ByteOrder.Uint32(raw[12:])), dotted(f.ByteOrder.Uint32(raw[16:]))
		case lcCodeSignature:
			m.Signed = true
		}
	}
	if f.Symtab == nil || f.Dysymtab == nil {
		return nil, fmt.Errorf("%s has no symbol table", path)
	}
	d := f.Dysymtab
	if uint64(d.Iundefsym)+uint64(d.Nundefsym) > uint64(len(f.Symtab.Syms)) {
		return nil, fmt.Errorf("%s: the table of imports is longer than that of symbols", path)
	}
	for _, s := range f.Symtab.Syms[d.Iundefsym : d.Iundefsym+d.Nundefsym] {
		i := Import{Symbol: s.Name, Weak: s.Desc&0x40 != 0}
		switch ordinal := int(s.Desc >> 8); {
		case ordinal == 0 || ordinal >= 254: // itself, dynamic lookup, the main program
		case ordinal > len(m.Libraries):
			return nil, fmt.Errorf("%s: %s comes from library %d of %d", path, s.Name, ordinal, len(m.Libraries))
		default:
			i.Library = m.Libraries[ordinal-1]
		}
		m.Imports = append(m.Imports, i)
	}
	return m, nil
}

func dotted(v uint32) string { return fmt.Sprintf("%d.%d", v>>16, v>>8&255) }

// Unresolved returns the imports that the named library, or one that it
// re-exports, does not have by the export lists. system holds the exports of
// the libraries that the compiler brings along.
func (m *MachO) Unresolved(libs []Library, system map[string][]string) []Import {
	exports := map[string]map[string]bool{}
	reexports := map[string][]string{}
	for _, l := range libs {
		set := map[string]bool{}
		for _, s := range l.Symbols {
			set[s] = true
		}
		for _, c := range l.Classes {
			set["_OBJC_CLASS_$_"+c], set["_OBJC_METACLASS_$_"+c] = true, true
		}
		exports[l.Install], reexports[l.Install] = set, l.Reexports
	}
	for lib, symbols := range system {
		set := map[string]bool{}
		for _, s := range symbols {
			set[s] = true
		}
		exports[lib] = set
	}
	var has func(lib, symbol string, depth int) bool
	has = func(lib, symbol string, depth int) bool {
		if exports[lib][symbol] {
			return true
		}
		return depth < 8 && slices.ContainsFunc(reexports[lib], func(r string) bool { return has(r, symbol, depth+1) })
	}
	var bad []Import
	for _, i := range m.Imports {
		from := []string{i.Library}
		if i.Library == "" {
			from = m.Libraries
		}
		if !slices.ContainsFunc(from, func(lib string) bool { return has(lib, i.Symbol, 0) }) {
			bad = append(bad, i)
		}
	}
	return bad
}
