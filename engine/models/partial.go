package models

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A blob on its way has two files beside its final name, both with the ending
// that the hub library knows as unfinished: the data, sparse, and a journal
// with one line per finished chunk: its number and SHA-256. The journal is never
// trusted: a chunk counts only if its bytes still have the hash. The names differ
// from those of the hub library, which continues partial files at their end.
const (
	dataSuffix    = ".sparkbar.incomplete"
	journalSuffix = ".chunks.sparkbar.incomplete"
	tempSuffix    = ".new.sparkbar.incomplete"
)

// partial is a blob on its way. Several goroutines may write chunks.
type partial struct {
	disk    *disk
	blob    string
	file    repoFile
	chunk   int64
	data    *os.File
	journal *os.File

	mu      sync.Mutex
	changed sync.Cond
	at      int64 // end of the journal
	done    []bool
	have    int64 // bytes of done chunks
	closed  bool
	sum     chan error // the outcome of follow
}

// openPartial opens what is there of a blob and keeps the chunks that are
// whole; found is told of each.
func openPartial(ctx context.Context, d *disk, blob string, file repoFile, chunk int64, found func(int64)) (p *partial, err error) {
	p = &partial{disk: d, blob: blob, file: file, chunk: chunk, done: make([]bool, (file.Size+chunk-1)/chunk), sum: make(chan error, 1)}
	p.changed.L = &p.mu
	data, err := d.open(blob+dataSuffix, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			data.Close()
		}
	}()
	p.data = data
	info, err := data.Stat()
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	fmt.Fprintf(&lines, "%d %d\n", file.Size, chunk)
	buf := make([]byte, min(chunk, file.Size))
	for i, want := range p.readJournal() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		lo, hi := p.span(i)
		if p.done[i] || hi > info.Size() {
			continue
		}
		if _, err := p.data.ReadAt(buf[:hi-lo], lo); err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(buf[:hi-lo]); hex.EncodeToString(sum[:]) == want {
			p.done[i] = true
			p.have += hi - lo
			found(hi - lo)
			fmt.Fprintf(&lines, "%d %s\n", i, want)
		}
	}
	if err := d.replace(blob+journalSuffix, blob+tempSuffix, lines.Bytes()); err != nil {
		return nil, err
	}
	p.at = int64(lines.Len())
	if p.journal, err = d.open(blob+journalSuffix, 0); err != nil {
		return nil, err
	}
	go p.follow()
	return p, nil
}

// readJournal returns the hash of each chunk that the journal lists. Anything
// odd in it ends the reading.
func (p *partial) readJournal() map[int]string {
	text, err := os.ReadFile(p.blob + journalSuffix)
	if err != nil || int64(len(text)) > 100*(int64(len(p.done))+2) {
		return nil
	}
	head, rest, ok := strings.Cut(string(text), "\n")
	if !ok || head != fmt.Sprintf("%d %d", p.file.Size, p.chunk) {
		return nil
	}
	sums := map[int]string{}
	for {
		line, more, ok := strings.Cut(rest, "\n")
		if !ok {
			return sums // a line without its end was cut short
		}
		rest = more
		number, sum, _ := strings.Cut(line, " ")
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 || i >= len(p.done) || !isHex(sum, 64) {
			return sums
		}
		sums[i] = sum
	}
}

func (p *partial) span(i int) (lo, hi int64) {
	lo = int64(i) * p.chunk
	return lo, min(lo+p.chunk, p.file.Size)
}

// missing lists the chunks that are to be fetched.
func (p *partial) missing() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []int
	for i, done := range p.done {
		if !done {
			list = append(list, i)
		}
	}
	return list
}

func (p *partial) has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[i]
}

// bytes is what is there for sure.
func (p *partial) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have
}

// chunkWriter writes one chunk from its start to its end.
type chunkWriter struct {
	p        *partial
	i        int
	at, end  int64
	sum      hash.Hash
	received func(int64)
}

func (p *partial) writer(i int, received func(int64)) *chunkWriter {
	lo, hi := p.span(i)
	return &chunkWriter{p: p, i: i, at: lo, end: hi, sum: sha256.New(), received: received}
}

// restart forgets what was written.
func (w *chunkWriter) restart() {
	lo, _ := w.p.span(w.i)
	w.received(lo - w.at)
	w.at = lo
	w.sum.Reset()
}

func (w *chunkWriter) Write(b []byte) (int, error) {
	if err := w.p.disk.writeAt(w.p.data, b, w.at); err != nil {
		return 0, err
	}
	w.sum.Write(b)
	w.at += int64(len(b))
	w.received(int64(len(b)))
	return len(b), nil
}

// finish notes a chunk that is written to its end.
func (w *chunkWriter) finish() error {
	p := w.p
	line := fmt.Appendf(nil, "%d %x\n", w.i, w.sum.Sum(nil))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.disk.writeAt(p.journal, line, p.at); err != nil {
		return err
	}
	p.at += int64(len(line))
	lo, hi := p.span(w.i)
	p.done[w.i] = true
	p.have += hi - lo
	p.changed.Broadcast()
	return nil
}

// errWrongHash is a file whose bytes are not those that the hub promised.
type errWrongHash struct{ got, want string }

func (e *errWrongHash) Error() string { return fmt.Sprintf("hash %s, promised %s", e.got, e.want) }

// follow hashes the file from start to end, close behind the writers.
func (p *partial) follow() {
	p.sum <- func() error {
		whole := blobHash(p.file)
		buf := make([]byte, min(p.chunk, max(p.file.Size, 1), 1<<20))
		for i := range p.done {
			p.mu.Lock()
			for !p.done[i] && !p.closed {
				p.changed.Wait()
			}
			closed := p.closed
			p.mu.Unlock()
			if closed {
				return context.Canceled
			}
			lo, hi := p.span(i)
			if n, err := io.CopyBuffer(whole, io.NewSectionReader(p.data, lo, hi-lo), buf); err != nil {
				return err
			} else if n != hi-lo {
				return &os.PathError{Op: "read", Path: p.data.Name(), Err: io.ErrUnexpectedEOF}
			}
		}
		if got := hex.EncodeToString(whole.Sum(nil)); got != p.file.ETag {
			return &errWrongHash{got, p.file.ETag}
		}
		return nil
	}()
}

// blobHash is the hash that names a blob: SHA-256 of the content for large
// files, else git's SHA-1 of a header and the content.
func blobHash(file repoFile) hash.Hash {
	if len(file.ETag) == 64 {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", file.Size)
	return h
}

// finish verifies the whole file and gives it its name. A file with a wrong
// hash is removed: which of its bytes are wrong cannot be known.
func (p *partial) finish() error {
	err := <-p.sum
	p.sum <- err // for close
	var wrong *errWrongHash
	if errors.As(err, &wrong) {
		p.close()
		return errors.Join(err, p.discard())
	}
	if err == nil {
		// An earlier program may have left more than the file has.
		if err = p.disk.ask("truncate", p.data.Name(), p.file.Size, 0); err == nil {
			err = p.data.Truncate(p.file.Size)
		}
	}
	if err == nil {
		err = p.disk.sync(p.data)
	}
	p.close()
	if err == nil {
		err = p.disk.rename(p.blob+dataSuffix, p.blob)
	}
	if err == nil {
		err = p.disk.syncFolder(filepath.Dir(p.blob))
	}
	if err == nil {
		err = p.disk.remove(p.blob + journalSuffix)
	}
	return err
}

// discard removes what is there of a blob.
func (p *partial) discard() error { return discardPartial(p.disk, p.blob) }

func discardPartial(d *disk, blob string) error {
	var errs []error
	for _, suffix := range []string{dataSuffix, journalSuffix, tempSuffix} {
		errs = append(errs, d.remove(blob+suffix))
	}
	return errors.Join(errs...)
}

// close ends the use; what is there stays.
func (p *partial) close() {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	p.mu.Unlock()
	p.sum <- <-p.sum // follow has ended
	p.data.Close()
	p.journal.Close()
}
