package cache

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Disk is a folder of pieces of pasts that outlive the process: one file per
// page of a group of layers, and one per end of a past that cannot be cut. The
// least recently used ones go when the folder grows over its limit.
//
// Nothing in the folder is trusted: a file counts only if its name, its header,
// its length and its checksum agree, and is removed otherwise. Files are written
// beside, synced and renamed, so a crash leaves at most a temporary file, which
// the next start removes. Files that are not named like the Disk's own are never
// touched. A Disk is safe for concurrent use, also by several processes: they see
// each other's files, and the limit is that of the folder.
type Disk struct {
	dir   string
	limit int64
	lock  *os.File
	ready chan struct{} // closed once the folder is read

	mu     sync.Mutex
	files  map[fileKey]*diskFile
	bytes  int64
	looked time.Time     // when the folder was read
	took   time.Duration // to read it
	dated  time.Time     // the folder, at that time
	ends   map[int]int   // how many files end at a length
	paused time.Time     // no writes before: the last one failed
	stats  DiskStats
}

// DiskStats is what a Disk holds, and what it did since it was opened.
type DiskStats struct {
	Dir           string
	Files         int
	Bytes, Limit  int64
	Written, Read int64 // bytes
	Removed       int   // files that were torn, foreign or damaged
	Evicted       int   // files that made room
	Fault         error // of the latest write, nil if it worked
}

// fileKey names a piece: what it depends on, hashed.
type fileKey struct {
	sum [sha256.Size]byte
	end int // the length of the past that ends here; 0 = a page
}

type diskFile struct {
	size int64
	used time.Time
}

const (
	diskMagic   = "sparkbar past\r\n\x1a" // 16 bytes
	diskVersion = 1
	diskHeader  = 16 + 4 + 4 + sha256.Size + 8 + sha256.Size
	// most files in a folder, whatever their size
	diskFiles = 1 << 16
	diskPause = time.Minute
)

var (
	diskName = regexp.MustCompile(`^([0-9a-f]{64})(-[1-9][0-9]{0,9})?\.past$`)
	tempName = regexp.MustCompile(`^\.past-[0-9]+\.tmp$`)
)

func (k fileKey) name() string {
	if k.end > 0 {
		return fmt.Sprintf("%x-%d.past", k.sum, k.end)
	}
	return fmt.Sprintf("%x.past", k.sum)
}

func parseName(name string) (k fileKey, ok bool) {
	m := diskName.FindStringSubmatch(name)
	if m == nil {
		return k, false
	}
	hex.Decode(k.sum[:], []byte(m[1]))
	if m[2] != "" {
		k.end, _ = strconv.Atoi(m[2][1:])
	}
	return k, true
}

// OpenDisk opens a folder, which is made if need be, of at most limit bytes. The
// folder is read in the background.
func OpenDisk(dir string, limit int64) (*Disk, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("a prefix folder of %d bytes; the limit must be above 0", limit)
	}
	lock, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	d := &Disk{dir: dir, limit: limit, lock: lock, ready: make(chan struct{}), files: map[fileKey]*diskFile{}, ends: map[int]int{}}
	go d.scan()
	return d, nil
}

// openFolder makes a folder if need be, and opens its lock.
func openFolder(dir string) (lock *os.File, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder for stored prefixes cannot be made: %w; choose another one, or switch it off", err)
	}
	if lock, err = os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("the folder for stored prefixes cannot be written: %w; choose another one, or switch it off", err)
	}
	return lock, nil
}

// Close gives the folder free. No store may use the Disk any more.
func (d *Disk) Close() error {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock.Close()
}

// Stats returns the counters.
func (d *Disk) Stats() DiskStats {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Dir, s.Files, s.Bytes, s.Limit = d.dir, len(d.files), d.bytes, d.limit
	return s
}

// scan reads which files there are, and removes those that cannot be used.
func (d *Disk) scan() {
	defer close(d.ready)
	// Whoever else uses the folder holds the lock, and its temporary files are
	// being written.
	alone := syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	d.mu.Lock()
	d.list(alone)
	d.mu.Unlock()
	syscall.Flock(int(d.lock.Fd()), syscall.LOCK_SH)
}

const (
	// diskLooks is how much longer than a look lies between two.
	diskLooks = 20
	// diskDates is how coarse the dates of folders may be.
	diskDates = 2 * time.Second
)

// look takes in what others have done to the folder: another process that uses it,
// or somebody who made room, perhaps by removing all of it. The caller holds the
// mutex.
func (d *Disk) look() {
	info, err := os.Stat(d.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if lock, err := openFolder(d.dir); err == nil {
			d.lock.Close()
			d.lock = lock
			syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		}
	case err != nil, info.ModTime().Equal(d.dated) && d.looked.Sub(d.dated) > diskDates, time.Since(d.looked) < diskLooks*d.took:
		return
	}
	d.list(false)
}

// list reads the folder. Temporary files are removed if nobody else uses it, and
// when nobody can be writing them any more. The caller holds the mutex.
func (d *Disk) list(alone bool) {
	d.looked, d.dated = time.Now(), time.Time{}
	if info, err := os.Stat(d.dir); err == nil {
		d.dated = info.ModTime()
	}
	there := map[fileKey]bool{}
	entries, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.dated = time.Time{} // what is known may still be true: look again
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(d.dir, e.Name())
		if tempName.MatchString(e.Name()) {
			if alone || time.Since(info.ModTime()) > time.Hour {
				os.Remove(path)
			}
			continue
		}
		k, ok := parseName(e.Name())
		if !ok {
			continue
		}
		if x := d.files[k]; x != nil && x.size == info.Size() {
			if there[k] = true; info.ModTime().After(x.used) { // by another process
				x.used = info.ModTime()
			}
			continue
		}
		ok, known := usable(path, k, info.Size())
		if !known {
			d.dated = time.Time{}
			continue
		}
		if !ok {
			os.Remove(path)
			d.stats.Removed++
			continue
		}
		d.drop(k)
		there[k] = true
		d.add(k, info.Size(), info.ModTime())
	}
	for k := range d.files {
		if !there[k] {
			d.drop(k)
		}
	}
	d.shrink(d.limit)
	d.took = time.Since(d.looked)
}

// usable checks all of a file but its content. known is false of one that cannot be
// opened: it is gone, or says nothing at the moment.
func usable(path string, k fileKey, size int64) (ok, known bool) {
	f, err := os.Open(path)
	if err != nil {
		return false, false
	}
	defer f.Close()
	var h [diskHeader]byte
	if _, err := io.ReadFull(f, h[:]); err != nil {
		return false, true
	}
	n, _, ok := parseHeader(h[:], k)
	return ok && size == diskHeader+n, true
}

// header of a piece: magic, version, 0, key, length and checksum of the payload.
func header(k fileKey, parts [][]byte) []byte {
	h := make([]byte, 0, diskHeader)
	h = append(h, diskMagic...)
	h = binary.LittleEndian.AppendUint32(h, diskVersion)
	h = binary.LittleEndian.AppendUint32(h, uint32(k.end))
	h = append(h, k.sum[:]...)
	h = binary.LittleEndian.AppendUint64(h, uint64(total(parts)))
	sum := sha256.New()
	for _, p := range parts {
		sum.Write(p)
	}
	return sum.Sum(h)
}

func parseHeader(h []byte, k fileKey) (payload int64, sum []byte, ok bool) {
	n := binary.LittleEndian.Uint64(h[24+sha256.Size:])
	ok = string(h[:16]) == diskMagic && binary.LittleEndian.Uint32(h[16:]) == diskVersion && binary.LittleEndian.Uint32(h[20:]) == uint32(k.end) &&
		bytes.Equal(h[24:24+sha256.Size], k.sum[:]) && n < 1<<48
	return int64(n), h[32+sha256.Size:], ok
}

func total(parts [][]byte) (n int64) {
	for _, p := range parts {
		n += int64(len(p))
	}
	return n
}

// has reports whether there is a file of a piece.
func (d *Disk) has(k fileKey) bool {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[k] != nil
}

// lengths are the lengths up to most at which a past may end, longest first.
func (d *Disk) lengths(most int) []int {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []int
	for n := range d.ends {
		if n <= most {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b int) int { return b - a })
	return list
}

// read fills the parts with a piece. It reports whether they hold it now; a file
// that does not is removed. It counts as used at that time.
func (d *Disk) read(k fileKey, now time.Time, parts [][]byte) bool {
	path := filepath.Join(d.dir, k.name())
	f, err := os.Open(path)
	if err != nil {
		d.forget(k)
		return false
	}
	defer f.Close()
	if err := readPiece(f, k, parts); err != nil {
		os.Remove(path)
		d.forget(k)
		d.mu.Lock()
		d.stats.Removed++
		d.mu.Unlock()
		return false
	}
	os.Chtimes(path, now, now)
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.files[k]; x != nil {
		x.used = now
	}
	d.stats.Read += total(parts)
	return true
}

func readPiece(f io.Reader, k fileKey, parts [][]byte) error {
	var h [diskHeader]byte
	if _, err := io.ReadFull(f, h[:]); err != nil {
		return err
	}
	n, want, ok := parseHeader(h[:], k)
	if !ok || n != total(parts) {
		return errors.New("another piece")
	}
	sum := sha256.New()
	for _, p := range parts {
		if _, err := io.ReadFull(f, p); err != nil {
			return err
		}
		sum.Write(p)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("the checksum differs")
	}
	if n, err := f.Read(h[:1]); n > 0 || !errors.Is(err, io.EOF) {
		return errors.New("longer than it says")
	}
	return nil
}

// add counts a file.
func (d *Disk) add(k fileKey, size int64, used time.Time) {
	d.files[k] = &diskFile{size, used}
	d.bytes += size
	if k.end > 0 {
		d.ends[k.end]++
	}
}

func (d *Disk) forget(k fileKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(k)
}

func (d *Disk) drop(k fileKey) {
	x := d.files[k]
	if x == nil {
		return
	}
	d.bytes -= x.size
	delete(d.files, k)
	if k.end > 0 {
		if d.ends[k.end]--; d.ends[k.end] == 0 {
			delete(d.ends, k.end)
		}
	}
}

// shrink removes what was used longest ago until at most limit bytes and a bit
// less than the most files are left.
func (d *Disk) shrink(limit int64) {
	if d.bytes <= limit && len(d.files) < diskFiles {
		return
	}
	type named struct {
		fileKey
		*diskFile
	}
	var list []named
	for k, f := range d.files {
		list = append(list, named{k, f})
	}
	slices.SortFunc(list, func(a, b named) int {
		return cmp.Or(a.used.Compare(b.used), bytes.Compare(a.sum[:], b.sum[:]))
	})
	for _, f := range list {
		if d.bytes <= limit-limit/32 && len(d.files) < diskFiles-diskFiles/32 {
			return
		}
		os.Remove(filepath.Join(d.dir, f.name()))
		d.drop(f.fileKey)
		d.stats.Evicted++
	}
}

// refresh makes has and lengths see what others have stored or removed.
func (d *Disk) refresh() {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
}

// writable reports whether a write is worth trying.
func (d *Disk) writable() bool {
	d.refresh()
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().After(d.paused)
}

// write stores a piece. After an error nothing is written for a while: a full
// disk costs nothing but the store.
func (d *Disk) write(k fileKey, now time.Time, parts [][]byte) (err error) {
	size := diskHeader + total(parts)
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock() // one file at a time
	d.look()
	if size > d.limit || d.files[k] != nil {
		return nil
	}
	if time.Now().Before(d.paused) {
		return d.stats.Fault
	}
	d.shrink(d.limit - size)
	defer func() {
		if d.stats.Fault = err; err != nil {
			d.paused = time.Now().Add(diskPause)
		}
	}()
	d.mu.Unlock()
	err = d.place(k, now, parts)
	d.mu.Lock()
	if err == nil {
		d.drop(k) // another store wrote it meanwhile
		d.add(k, size, now)
		d.stats.Written += size
	}
	return err
}

// place writes a file beside and gives it its name once it is whole.
func (d *Disk) place(k fileKey, now time.Time, parts [][]byte) (err error) {
	f, err := os.CreateTemp(d.dir, ".past-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	for _, p := range slices.Insert(slices.Clone(parts), 0, header(k, parts)) {
		if _, err = f.Write(p); err != nil {
			f.Close()
			return err
		}
	}
	err = errors.Join(f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.dir, k.name()))
	}
	if err == nil {
		os.Chtimes(filepath.Join(d.dir, k.name()), now, now)
	}
	return err
}

// sync makes the names of files lasting.
func (d *Disk) sync() {
	if f, err := os.Open(d.dir); err == nil {
		f.Sync()
		f.Close()
	}
}
