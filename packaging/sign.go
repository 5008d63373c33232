package packaging

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The pieces of a code signature. Formats: the header cs_blobs.h of Apple's
// open source kernel, https://opensource.apple.com.
const (
	magicEmbedded     = 0xfade0cc0
	magicDirectory    = 0xfade0c02
	magicRequirements = 0xfade0c01
	magicWrapper      = 0xfade0b01
	slotDirectory     = 0
	slotInfo          = 1
	slotRequirements  = 2
	slotResources     = 3
	slotSignature     = 0x10000
	directoryVersion  = 0x20400
	adhoc             = 2
	signPage          = 4096
	signAlign         = 0x4000
	linkedit          = "__LINKEDIT"
)

var le = binary.LittleEndian

// Sign writes an ad-hoc signature into the executable of the bundle app and
// seals the bundle's other files. sdk, like "15.0", becomes the version of the
// system that the program says it was built for; "" leaves it.
func Sign(app, sdk string) error {
	c, err := openBundle(app)
	if err != nil {
		return err
	}
	resources, err := c.seal()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.contents, "_CodeSignature")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "CodeResources"), resources, 0o644); err != nil {
		return err
	}
	b, err := os.ReadFile(c.executable)
	if err != nil {
		return err
	}
	signed, err := signMachO(b, c.identifier, c.info, resources, sdk)
	if err != nil {
		return fmt.Errorf("%s: %w", c.executable, err)
	}
	return os.WriteFile(c.executable, signed, 0o755)
}

// loads walks the load commands of a thin 64-bit file.
func loads(b []byte, each func(cmd uint32, at, size int) error) error {
	if len(b) < 32 || le.Uint32(b) != 0xfeedfacf {
		return errors.New("not a thin 64-bit Mach-O file")
	}
	n, at := int(le.Uint32(b[16:])), 32
	for range n {
		if at+8 > len(b) {
			return errors.New("the load commands run past the end")
		}
		size := int(le.Uint32(b[at+4:]))
		if size < 8 || at+size > len(b) {
			return errors.New("a load command has a wrong size")
		}
		if err := each(le.Uint32(b[at:]), at, size); err != nil {
			return err
		}
		at += size
	}
	return nil
}

func signMachO(b []byte, identifier string, info, resources []byte, sdk string) ([]byte, error) {
	b = bytes.Clone(b)
	signature, edit, end, first := 0, 0, 32, len(b)
	var text [2]uint64 // offset and size of __TEXT
	err := loads(b, func(cmd uint32, at, size int) error {
		end = at + size
		switch cmd {
		case lcCodeSignature:
			signature = at
		case lcBuildVersion:
			if sdk == "" {
				return nil
			}
			var major, minor uint32
			if _, err := fmt.Sscanf(sdk, "%d.%d", &major, &minor); err != nil || size < 20 {
				return fmt.Errorf("%q is no version", sdk)
			}
			le.PutUint32(b[at+16:], major<<16|minor<<8)
		case 0x19: // segment
			if size < 72 {
				return errors.New("a segment is cut off")
			}
			name := string(bytes.TrimRight(b[at+8:at+24], "\x00"))
			if name == linkedit {
				edit = at
			}
			if name == "__TEXT" {
				text = [2]uint64{le.Uint64(b[at+40:]), le.Uint64(b[at+48:])}
			}
			for i := range int(le.Uint32(b[at+64:])) {
				s := at + 72 + 80*i
				if s+80 > at+size {
					return errors.New("a section is cut off")
				}
				if off := int(le.Uint32(b[s+48:])); off > 0 {
					first = min(first, off)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if edit == 0 {
		return nil, errors.New("no segment " + linkedit)
	}
	if signature == 0 {
		if end+16 > first {
			return nil, errors.New("no room for a signature among the load commands")
		}
		signature = end
		le.PutUint32(b[end:], lcCodeSignature)
		le.PutUint32(b[end+4:], 16)
		le.PutUint32(b[end+8:], uint32(len(b)+15)&^15)
		le.PutUint32(b[16:], le.Uint32(b[16:])+1)
		le.PutUint32(b[20:], le.Uint32(b[20:])+16)
	}
	limit := int(le.Uint32(b[signature+8:]))
	if limit > len(b)+16 {
		return nil, errors.New("the signature lies past the end")
	}
	b = append(b[:min(limit, len(b))], make([]byte, max(0, limit-len(b)))...)

	requirements := be32(magicRequirements, 12, 0)
	wrapper := be32(magicWrapper, 8)
	id := append([]byte(identifier), 0)
	pages := (limit + signPage - 1) / signPage
	const special = slotResources
	hashes := 88 + len(id) + 32*special
	directory := hashes + 32*pages
	total := 12 + 3*8 + directory + len(requirements) + len(wrapper)
	room := (total + signAlign - 1) &^ (signAlign - 1)

	le.PutUint32(b[signature+8:], uint32(limit))
	le.PutUint32(b[signature+12:], uint32(room))
	from := le.Uint64(b[edit+40:])
	if from > uint64(limit) {
		return nil, errors.New(linkedit + " begins past the signature")
	}
	le.PutUint64(b[edit+32:], (uint64(limit+room)-from+signAlign-1)&^(signAlign-1))
	le.PutUint64(b[edit+48:], uint64(limit+room)-from)

	var cd bytes.Buffer
	cd.Write(be32(magicDirectory, uint32(directory), directoryVersion, adhoc, uint32(hashes), 88, special, uint32(pages), uint32(limit)))
	cd.Write([]byte{32, 2, 0, 12}) // hash size, SHA-256, platform, log2 of the page
	cd.Write(be32(0, 0, 0, 0))
	cd.Write(be64(0, text[0], text[1], 1)) // 64-bit limit, executable segment, main binary
	cd.Write(id)
	for _, part := range [][]byte{resources, requirements, info} { // from slot 3 down
		h := sha256.Sum256(part)
		if part == nil {
			h = [32]byte{}
		}
		cd.Write(h[:])
	}
	for at := 0; at < limit; at += signPage {
		h := sha256.Sum256(b[at:min(at+signPage, limit)])
		cd.Write(h[:])
	}
	if cd.Len() != directory {
		return nil, fmt.Errorf("the code directory has %d bytes instead of %d", cd.Len(), directory)
	}
	out := bytes.NewBuffer(b)
	at := uint32(12 + 3*8)
	out.Write(be32(magicEmbedded, uint32(total), 3,
		slotDirectory, at, slotRequirements, at+uint32(directory), slotSignature, at+uint32(directory+len(requirements))))
	out.Write(cd.Bytes())
	out.Write(requirements)
	out.Write(wrapper)
	out.Write(make([]byte, room-total))
	return out.Bytes(), nil
}

func be32(v ...uint32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

func be64(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

// Verify reads the signature of a bundle again and compares every hash in it:
// the pages of the executable, Info.plist, and each sealed file.
func Verify(app string) error {
	c, err := openBundle(app)
	if err != nil {
		return err
	}
	resources, err := os.ReadFile(filepath.Join(c.contents, "_CodeSignature", "CodeResources"))
	if err != nil {
		return fmt.Errorf("the bundle is not sealed: %w", err)
	}
	again, err := c.seal()
	if err != nil {
		return err
	}
	if !bytes.Equal(resources, again) {
		return errors.New("a file of the bundle was changed, added or removed after it was sealed")
	}
	b, err := os.ReadFile(c.executable)
	if err != nil {
		return err
	}
	return verifyMachO(b, c.identifier, map[uint32][]byte{slotInfo: c.info, slotResources: resources})
}

func verifyMachO(b []byte, identifier string, special map[uint32][]byte) error {
	at, size := 0, 0
	err := loads(b, func(cmd uint32, p, n int) error {
		if cmd == lcCodeSignature && n >= 16 {
			at, size = int(le.Uint32(b[p+8:])), int(le.Uint32(b[p+12:]))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if at == 0 || size < 12 || at+size > len(b) {
		return errors.New("the program is not signed")
	}
	s := b[at : at+size]
	u := func(p int) int { return int(binary.BigEndian.Uint32(s[p:])) }
	if u(0) != magicEmbedded || u(4) > size {
		return errors.New("the signature is damaged")
	}
	for i := range u(8) {
		if 12+8*i+8 > size {
			return errors.New("the list of the signature's parts is cut off")
		}
		if u(12+8*i) != slotDirectory {
			continue
		}
		d := u(12 + 8*i + 4)
		if d+88 > size || u(d) != magicDirectory || d+u(d+4) > size {
			return errors.New("the code directory is cut off")
		}
		cd := s[d : d+u(d+4)]
		v := func(p int) int { return int(binary.BigEndian.Uint32(cd[p:])) }
		hashes, ident, nSpecial, pages, limit := v(16), v(20), v(24), v(28), v(32)
		if limit != at || pages != (limit+signPage-1)/signPage || hashes+32*pages > len(cd) || hashes < 32*nSpecial || ident >= len(cd) {
			return errors.New("the code directory does not fit the program")
		}
		if name, _, _ := bytes.Cut(cd[ident:], []byte{0}); string(name) != identifier {
			return fmt.Errorf("the program was signed as %s, the bundle is %s", name, identifier)
		}
		for k := range pages {
			h := sha256.Sum256(b[signPage*k : min(signPage*(k+1), limit)])
			if !bytes.Equal(h[:], cd[hashes+32*k:hashes+32*k+32]) {
				return fmt.Errorf("page %d of the program was changed after it was signed", k)
			}
		}
		for slot, part := range special {
			if int(slot) > nSpecial {
				return fmt.Errorf("part %d is not signed", slot)
			}
			h := sha256.Sum256(part)
			if p := hashes - 32*int(slot); !bytes.Equal(h[:], cd[p:p+32]) {
				return fmt.Errorf("part %d was changed after it was signed (1 = Info.plist, 3 = the seal of the other files)", slot)
			}
		}
		return nil
	}
	return errors.New("the signature has no code directory")
}

// bundleFiles is what a signature says about the files of a bundle.
type bundleFiles struct {
	contents, executable, identifier string
	info                             []byte
}

func openBundle(app string) (*bundleFiles, error) {
	c := &bundleFiles{contents: filepath.Join(app, "Contents")}
	var err error
	if c.info, err = os.ReadFile(filepath.Join(c.contents, "Info.plist")); err != nil {
		return nil, fmt.Errorf("%s is no bundle: %w", app, err)
	}
	p, err := readPlist(c.info)
	if err != nil {
		return nil, err
	}
	c.identifier, _ = p["CFBundleIdentifier"].(string)
	exe, _ := p["CFBundleExecutable"].(string)
	if c.identifier == "" || exe == "" || exe != filepath.Base(exe) {
		return nil, fmt.Errorf("%s: Info.plist names no identifier or no executable", app)
	}
	c.executable = filepath.Join(c.contents, "MacOS", exe)
	return c, nil
}

// Rules of which files a seal covers, as the system's tool writes them.
const sealRules = `<key>rules</key><dict><key>^Resources/</key><true/><key>^Resources/.*\.lproj/</key><dict><key>optional</key><true/><key>weight</key><real>1000</real></dict><key>^Resources/.*\.lproj/locversion.plist$</key><dict><key>omit</key><true/><key>weight</key><real>1100</real></dict><key>^Resources/Base\.lproj/</key><dict><key>weight</key><real>1010</real></dict><key>^version.plist$</key><true/></dict>
<key>rules2</key><dict><key>.*\.dSYM($|/)</key><dict><key>weight</key><real>11</real></dict><key>^(.*/)?\.DS_Store$</key><dict><key>omit</key><true/><key>weight</key><real>2000</real></dict><key>^(Frameworks|SharedFrameworks|PlugIns|Plug-ins|XPCServices|Helpers|MacOS|Library/(Automator|Spotlight|LoginItems))/</key><dict><key>nested</key><true/><key>weight</key><real>10</real></dict><key>^.*</key><true/><key>^Info\.plist$</key><dict><key>omit</key><true/><key>weight</key><real>20</real></dict><key>^PkgInfo$</key><dict><key>omit</key><true/><key>weight</key><real>20</real></dict><key>^Resources/</key><dict><key>weight</key><real>20</real></dict><key>^Resources/.*\.lproj/</key><dict><key>optional</key><true/><key>weight</key><real>1000</real></dict><key>^Resources/.*\.lproj/locversion.plist$</key><dict><key>omit</key><true/><key>weight</key><real>1100</real></dict><key>^Resources/Base\.lproj/</key><dict><key>weight</key><real>1010</real></dict><key>^[^/]+$</key><dict><key>nested</key><true/><key>weight</key><real>10</real></dict><key>^embedded\.provisionprofile$</key><dict><key>weight</key><real>20</real></dict><key>^version\.plist$</key><dict><key>weight</key><real>20</real></dict></dict>
`

// seal lists the bundle's files with their hashes.
func (c *bundleFiles) seal() ([]byte, error) {
	type file struct {
		rel  string
		one  [20]byte
		full [32]byte
	}
	var files []file
	err := filepath.WalkDir(c.contents, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(c.contents, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if strings.HasPrefix(rel, "_CodeSignature/") || rel == "Info.plist" || rel == "PkgInfo" || p == c.executable || filepath.Base(rel) == ".DS_Store" {
			return nil
		}
		if !d.Type().IsRegular() || !strings.HasPrefix(rel, "Resources/") {
			return fmt.Errorf("%s cannot be sealed: only plain files below Resources are known", rel)
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		files = append(files, file{rel, sha1.Sum(b), sha256.Sum256(b)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.rel, b.rel) })
	var b bytes.Buffer
	b.WriteString(plistHead + "<dict>\n<key>files</key><dict>\n")
	for _, f := range files {
		fmt.Fprintf(&b, "<key>%s</key><data>%s</data>\n", escapeXML(f.rel), base64Text(f.one[:]))
	}
	b.WriteString("</dict>\n<key>files2</key><dict>\n")
	for _, f := range files {
		fmt.Fprintf(&b, "<key>%s</key><dict><key>hash2</key><data>%s</data></dict>\n", escapeXML(f.rel), base64Text(f.full[:]))
	}
	b.WriteString("</dict>\n" + sealRules + "</dict>\n</plist>\n")
	return b.Bytes(), nil
}
