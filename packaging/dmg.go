package packaging

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The disk image format UDIF: a body of compressed runs, a property list that
// lists them, and a trailer of 512 bytes ("koly").
const (
	sector    = 512
	chunk     = 2048 // sectors of a run
	runZlib   = 0x80000005
	runRaw    = 1
	runEmpty  = 2
	runEnd    = 0xffffffff
	kolySize  = 512
	blockHead = 204 // of a block table before its runs
)

// DiskImage makes a disk image that holds the bundle app beside a link to
// /Applications. It needs xorrisofs.
func DiskImage(app, volume, out string) error {
	tool, err := exec.LookPath("xorrisofs")
	if err != nil {
		return errors.New("xorrisofs is missing; run `make setup-cross`")
	}
	tmp, err := os.MkdirTemp("", "dmg")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	link, raw := filepath.Join(tmp, "Applications"), filepath.Join(tmp, "raw")
	if err := os.Symlink("/Applications", link); err != nil {
		return err
	}
	cmd := exec.Command(tool, "-quiet", "-D", "-l", "-V", volume, "-no-pad", "-r", "-dir-mode", "0755", "-o", raw, "-graft-points",
		"/"+filepath.Base(app)+"="+app, "/Applications="+link)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("xorrisofs: %w: %s", err, b)
	}
	disk, err := os.ReadFile(raw)
	if err != nil {
		return err
	}
	image, err := wrapImage(disk)
	if err != nil {
		return err
	}
	if again, err := unwrapImage(image); err != nil || !bytes.HasPrefix(again, disk) {
		return fmt.Errorf("the disk image cannot be read again: %w", err)
	}
	return os.WriteFile(out, image, 0o644)
}

// wrapImage packs the sectors of a disk as a compressed image.
func wrapImage(disk []byte) ([]byte, error) {
	disk = append(disk, make([]byte, (sector-len(disk)%sector)%sector)...)
	sectors := len(disk) / sector
	var body, runs bytes.Buffer
	n := 0
	run := func(kind uint32, at, count int, from, size int) {
		runs.Write(be32(kind, 0))
		runs.Write(be64(uint64(at), uint64(count), uint64(from), uint64(size)))
		n++
	}
	for at := 0; at < sectors; at += chunk {
		count := min(chunk, sectors-at)
		b := disk[at*sector : (at+count)*sector]
		if len(bytes.Trim(b, "\x00")) == 0 {
			run(runEmpty, at, count, body.Len(), 0)
			continue
		}
		var z bytes.Buffer
		w, err := zlib.NewWriterLevel(&z, zlib.BestCompression)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(b); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		kind := uint32(runZlib)
		if z.Len() >= len(b) {
			kind = runRaw
			z = *bytes.NewBuffer(b)
		}
		run(kind, at, count, body.Len(), z.Len())
		body.Write(z.Bytes())
	}
	run(runEnd, sectors, 0, body.Len(), 0)

	sum := func(crc uint32) []byte { return append(be32(2, 32, crc), make([]byte, 124)...) }
	crc := crc32.ChecksumIEEE(disk)
	var table bytes.Buffer
	table.WriteString("mish")
	table.Write(be32(1))
	table.Write(be64(0, uint64(sectors), 0))
	table.Write(be32(chunk+8, 0))
	table.Write(make([]byte, 24))
	table.Write(sum(crc))
	table.Write(be32(uint32(n)))
	if table.Len() != blockHead {
		return nil, fmt.Errorf("the block table's head has %d bytes", table.Len())
	}
	table.Write(runs.Bytes())
	list := plistHead + "<dict><key>resource-fork</key><dict><key>blkx</key><array><dict><key>Attributes</key><string>0x0050</string>" +
		"<key>CFName</key><string>whole disk</string><key>Data</key><data>" + base64Text(table.Bytes()) +
		"</data><key>ID</key><string>0</string><key>Name</key><string>whole disk</string></dict></array><key>plst</key><array/></dict></dict>\n</plist>\n"

	id := sha256.Sum256(disk)
	var k bytes.Buffer
	k.WriteString("koly")
	k.Write(be32(4, kolySize, 1))
	k.Write(be64(0, 0, uint64(body.Len()), 0, 0))
	k.Write(be32(1, 1))
	k.Write(id[:16])
	k.Write(sum(crc32.ChecksumIEEE(body.Bytes())))
	k.Write(be64(uint64(body.Len()), uint64(len(list))))
	k.Write(make([]byte, 120))
	k.Write(sum(crc32.ChecksumIEEE(be32(crc))))
	k.Write(be32(1))
	k.Write(be64(uint64(sectors)))
	k.Write(make([]byte, 12))
	if k.Len() != kolySize {
		return nil, fmt.Errorf("the trailer has %d bytes", k.Len())
	}
	return append(append(body.Bytes(), list...), k.Bytes()...), nil
}

// unwrapImage reads an image again and checks its sums.
func unwrapImage(b []byte) ([]byte, error) {
	if len(b) < kolySize || string(b[len(b)-kolySize:len(b)-kolySize+4]) != "koly" {
		return nil, errors.New("not a disk image: it has no trailer")
	}
	k := b[len(b)-kolySize:]
	u32 := func(b []byte, at int) uint32 { return binary.BigEndian.Uint32(b[at:]) }
	u64 := func(b []byte, at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	bodySize, listAt, listSize := u64(k, 32), u64(k, 216), u64(k, 224)
	if bodySize > uint64(len(b)) || listAt > uint64(len(b)) || listSize > uint64(len(b))-listAt {
		return nil, errors.New("the trailer points past the end")
	}
	if crc32.ChecksumIEEE(b[:bodySize]) != u32(k, 88) {
		return nil, errors.New("the body's sum is wrong")
	}
	p, err := readPlist(b[listAt : listAt+listSize])
	if err != nil {
		return nil, err
	}
	fork, _ := p["resource-fork"].(map[string]any)
	blocks, _ := fork["blkx"].([]any)
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d block tables", len(blocks))
	}
	entry, _ := blocks[0].(map[string]any)
	text, _ := entry["Data"].(string)
	table, err := io.ReadAll(base64Reader(strings.TrimSpace(text)))
	if err != nil {
		return nil, err
	}
	if len(table) < blockHead || string(table[:4]) != "mish" || len(table) != blockHead+40*int(u32(table, 200)) {
		return nil, errors.New("the block table is damaged")
	}
	total := u64(table, 16) * sector
	if total > 1<<30 {
		return nil, errors.New("the disk is larger than 1 GB")
	}
	disk := make([]byte, total)
	for r := table[blockHead:]; len(r) >= 40; r = r[40:] {
		at, count, from, size := u64(r, 8)*sector, u64(r, 16)*sector, u64(r, 24), u64(r, 32)
		if at+count > total || from > bodySize || size > bodySize-from {
			return nil, errors.New("a run lies outside")
		}
		switch u32(r, 0) {
		case runEnd, runEmpty:
		case runRaw:
			copy(disk[at:at+count], b[from:from+size])
		case runZlib:
			z, err := zlib.NewReader(bytes.NewReader(b[from : from+size]))
			if err != nil {
				return nil, err
			}
			if _, err := io.ReadFull(z, disk[at:at+count]); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("a run of kind %#x", u32(r, 0))
		}
	}
	if crc := crc32.ChecksumIEEE(disk); crc != u32(table, 72) {
		return nil, errors.New("the disk's sum is wrong")
	}
	return disk, nil
}
