package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/wholefile"
)

// Snapshot is a downloaded model.
type Snapshot struct {
	Repo   string
	Commit string
	Path   string // the folder, or the (first) GGUF file
}

// State is where a download stands.
type State string

// The states of a download. Done, failed and cancelled are final.
const (
	StatePlanning    State = "planning"    // asking the hub
	StateWaiting     State = "waiting"     // another process downloads the same file
	StateDownloading State = "downloading" //
	StatePaused      State = "paused"
	StateDone        State = "done"
	StateFailed      State = "failed"
	StateCancelled   State = "cancelled"
)

// Progress is a reading of a download. Byte counts are of the wanted files
// only, and of bytes that are known to be right or are on their way.
type Progress struct {
	State          State
	Repo           string // what is being fetched now
	BytesDone      int64
	BytesTotal     int64 // 0 until the hub has answered
	BytesPerSecond float64
	ETA            time.Duration // 0 = not known
}

// Downloader fetches models into the hub cache, in the layout of the hub
// library, which may use the same cache at the same time.
type Downloader struct {
	o   HubOptions
	hub *hub
}

// NewDownloader checks the options. It does not use the network.
func NewDownloader(o HubOptions) (*Downloader, error) {
	if o.Cache == "" {
		o.Cache = hubCache()
	}
	if o.Workers <= 0 {
		o.Workers = 8
	}
	if o.clock == nil {
		o.clock = systemClock{}
	}
	if o.chunk == 0 {
		o.chunk = 16 << 20
	}
	if o.free == nil {
		o.free = freeSpace
	}
	h, err := newHub(o)
	if err != nil {
		return nil, err
	}
	return &Downloader{o: o, hub: h}, nil
}

// Job is a running download of one or several models.
type Job struct {
	d    *Downloader
	reqs []Request
	done chan struct{}

	mu      sync.Mutex
	p       Progress
	stop    context.CancelCauseFunc // ends the current attempt
	resumed chan struct{}           // closed when a paused job goes on
	ended   error                   // set by Cancel
	cleanup bool
	plans   []*plan
	result  []Snapshot
	err     error
	samples []sample
}

// sample is how much had been received at a time.
type sample struct {
	at    time.Time
	bytes int64
}

var (
	errPaused    = errors.New("paused")
	errCancelled = errors.New("cancelled")
)

// Start downloads the given models, usually a target and its drafter, as one
// job: their sizes are checked together, and they arrive in the given order.
func (d *Downloader) Start(reqs ...Request) *Job {
	j := &Job{d: d, reqs: slices.Clone(reqs), done: make(chan struct{}), p: Progress{State: StatePlanning}}
	ctx, cancel := context.WithCancelCause(context.Background())
	j.stop = cancel
	go j.run(ctx)
	return j
}

// Done is closed when the job has ended.
func (j *Job) Done() <-chan struct{} { return j.done }

// Wait returns the models, in the order of the requests, or an *Error. When ctx
// ends first the job is cancelled; what is there stays.
func (j *Job) Wait(ctx context.Context) ([]Snapshot, error) {
	select {
	case <-j.done:
	case <-ctx.Done():
		j.Cancel(false)
		<-j.done
	}
	return j.result, j.err
}

// Pause stops the transfer until Resume. What is there stays.
func (j *Job) Pause() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.resumed == nil && j.ended == nil {
		j.resumed = make(chan struct{})
		j.stop(errPaused)
	}
}

// Resume lets a paused job go on.
func (j *Job) Resume() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.resumed != nil {
		close(j.resumed)
		j.resumed = nil
		if j.p.State == StatePaused {
			j.p.State = StatePlanning
		}
	}
}

// Cancel ends the job. With cleanup the files of unfinished models are removed,
// else downloading again goes on where this ended.
func (j *Job) Cancel(cleanup bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended == nil {
		j.ended, j.cleanup = errCancelled, cleanup
		j.stop(errCancelled)
		if j.resumed != nil {
			close(j.resumed)
			j.resumed = nil
		}
	}
}

// rateWindow is the time over which the bandwidth is averaged.
const rateWindow = 10 * time.Second

// Progress returns where the job stands.
func (j *Job) Progress() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.p
	if j.resumed != nil && p.State != StateDone && p.State != StateFailed {
		p.State = StatePaused // what is on its way still comes to an end
	}
	if p.State != StateDownloading && p.State != StateWaiting {
		return p
	}
	now := j.d.o.clock.Now()
	for len(j.samples) > 1 && now.Sub(j.samples[1].at) >= rateWindow {
		j.samples = j.samples[1:]
	}
	if len(j.samples) > 0 {
		if s := j.samples[0]; now.After(s.at) {
			p.BytesPerSecond = max(0, float64(p.BytesDone-s.bytes)/now.Sub(s.at).Seconds())
		}
	}
	if p.BytesPerSecond > 0 {
		p.ETA = time.Duration(float64(p.BytesTotal-p.BytesDone) / p.BytesPerSecond * float64(time.Second))
	}
	return p
}

// add counts bytes. Those that are no news (found on disk, or dropped) do not
// count as bandwidth.
func (j *Job) add(n int64, news bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.p.BytesDone += n
	if !news {
		for i := range j.samples {
			j.samples[i].bytes += n
		}
		return
	}
	now := j.d.o.clock.Now()
	if k := len(j.samples); k == 0 || now.Sub(j.samples[k-1].at) >= rateWindow/40 {
		j.samples = append(j.samples, sample{now, j.p.BytesDone - n})
	}
	if len(j.samples) > 64 {
		j.samples = j.samples[1:]
	}
}

func (j *Job) state(s State, repo string) {
	j.mu.Lock()
	j.p.State, j.p.Repo = s, repo
	j.mu.Unlock()
}

func (j *Job) run(ctx context.Context) {
	defer close(j.done)
	for {
		result, err := j.fetch(ctx)
		j.mu.Lock()
		resumed, ended := j.resumed, j.ended
		if err == nil {
			j.result, j.p.State = result, StateDone
			j.mu.Unlock()
			return
		}
		if ended == nil && !errors.Is(context.Cause(ctx), errPaused) {
			j.err, j.p.State = err, StateFailed
			j.mu.Unlock()
			return
		}
		if ended == nil { // paused, and perhaps resumed already
			j.p.State, j.samples = StatePaused, nil
			j.mu.Unlock()
			if resumed != nil {
				<-resumed
			}
			j.mu.Lock()
			ended = j.ended
			j.p = Progress{State: StatePlanning}
			ctx, j.stop = context.WithCancelCause(context.Background())
			if j.resumed != nil { // paused again meanwhile
				j.stop(errPaused)
			}
		}
		if ended != nil {
			what := "what is here is kept, downloading again resumes"
			cleanup := j.cleanup
			j.mu.Unlock()
			if cleanup {
				what = "the unfinished files are removed"
				for _, p := range j.plans {
					if err := p.locked(context.Background(), p.cleanup); err != nil {
						what = fmt.Sprintf("the unfinished files could not be removed: %v", err)
					}
				}
			}
			j.mu.Lock()
			j.err, j.p.State = failure(ErrCancelled, j.reqs[0].Repo, errCancelled, "the download was cancelled; %s", what), StateCancelled
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
	}
}

// plan is what one request means.
type plan struct {
	d      *Downloader
	req    Request
	commit string
	model  string // the GGUF file, "" = the folder
	files  []repoFile
	folder string // of the repository
	// missing are the files that were not there when the job began, one of each
	// content.
	missing []repoFile
}

// manifest is kept beside an unfinished snapshot: which files it will have.
type manifest struct {
	Repo     string     `json:"repo"`
	Revision string     `json:"revision"`
	Commit   string     `json:"commit"`
	Model    string     `json:"model"`
	Files    []repoFile `json:"files"`
}

const (
	manifestPrefix = ".sparkbar-download-"
	maxManifest    = 16 << 20
)

func (p *plan) manifest() string {
	return filepath.Join(p.folder, manifestPrefix+p.commit+".json")
}
func (p *plan) blob(f repoFile) string { return filepath.Join(p.folder, "blobs", f.ETag) }
func (p *plan) pointer(f repoFile) string {
	return filepath.Join(p.folder, "snapshots", p.commit, filepath.FromSlash(f.Path))
}

func (p *plan) snapshot() Snapshot {
	return Snapshot{p.req.Repo, p.commit, filepath.Join(p.folder, "snapshots", p.commit, filepath.FromSlash(p.model))}
}

// present reports whether a file is there. Blobs are verified before they get
// their name, so the size tells.
func (p *plan) present(f repoFile) bool {
	return hasSize(p.pointer(f), f.Size) || hasSize(p.blob(f), f.Size)
}

func hasSize(path string, n int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == n
}

// fetch runs the job once, from the plan to the last file.
func (j *Job) fetch(ctx context.Context) ([]Snapshot, error) {
	d := j.d
	j.state(StatePlanning, "")
	var plans []*plan
	var out []Snapshot
	for i := range j.reqs {
		j.state(StatePlanning, j.reqs[i].Repo)
		if err := j.reqs[i].check(); err != nil {
			return nil, err
		}
		p, err := d.plan(ctx, j.reqs[i])
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	j.mu.Lock()
	j.plans = plans
	j.mu.Unlock()
	var total, missing int64
	seen := map[string]bool{}
	for _, p := range plans {
		for _, f := range p.files {
			if seen[p.blob(f)] {
				continue
			}
			seen[p.blob(f)] = true
			total += f.Size
			if p.present(f) {
				j.add(f.Size, false)
			} else {
				p.missing = append(p.missing, f)
				missing += f.Size - allocated(p.blob(f)+dataSuffix)
			}
		}
	}
	j.mu.Lock()
	j.p.BytesTotal = total
	j.mu.Unlock()
	if free, err := d.o.free(d.o.Cache); err == nil && missing > 0 && missing+missing/100 > free {
		return nil, failure(ErrDiskFull, plans[0].req.Repo, nil, "%s are still to come and the disk of %s has %s free; make room, or set HF_HUB_CACHE to a folder on another disk",
			byteText(missing), d.o.Cache, byteText(free))
	}
	for _, p := range plans {
		j.state(StateDownloading, p.req.Repo)
		if err := j.fetchOne(ctx, p); err != nil {
			return nil, d.explain(p, err)
		}
		out = append(out, p.snapshot())
	}
	return out, nil
}

// allocated is how much of the disk a file takes.
func allocated(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(int64(s.Blocks)*512, info.Size())
	}
	return 0
}

// plan asks the hub what a request means, or offline the cache.
func (d *Downloader) plan(ctx context.Context, r Request) (*plan, error) {
	p := &plan{d: d, req: r, folder: filepath.Join(d.o.Cache, repoFolder(r.Repo))}
	if d.o.Offline {
		return d.planOffline(p)
	}
	l, err := d.hub.list(ctx, r.Repo, r.Revision)
	if err != nil {
		return nil, err
	}
	p.commit = l.commit
	if p.files, p.model, err = choose(r, l.files); err != nil {
		return nil, err
	}
	// config.json comes first and is checked before the weights.
	slices.SortStableFunc(p.files, func(a, b repoFile) int { return rank(a) - rank(b) })
	return p, nil
}

func rank(f repoFile) int {
	if f.Path == "config.json" {
		return 0
	}
	return 1
}

// planOffline accepts a model that is complete in the cache.
func (d *Downloader) planOffline(p *plan) (*plan, error) {
	for _, m := range scanRepo(d.o.Cache, p.req.Repo, newInspector()) {
		at, _ := wholefile.Read(filepath.Join(p.folder, "refs", filepath.FromSlash(p.req.Revision)), 100)
		if p.req.Revision != "main" && p.req.Revision != m.Revision && string(at) != m.Revision {
			continue
		}
		if m.Complete && (p.req.File == "" || strings.Contains(strings.ToLower(m.Path), strings.ToLower(p.req.File))) {
			p.commit = m.Revision
			if m.Kind == KindGGUF {
				p.model, _ = filepath.Rel(filepath.Join(p.folder, "snapshots", p.commit), m.Path)
			}
			return p, nil
		}
	}
	return nil, failure(ErrOffline, p.req.Repo, nil, "the model is not complete on this machine, and --offline or HF_HUB_OFFLINE forbids downloads; leave it out, or choose a model that is here")
}

// explain turns an error of fetchOne into one for people.
func (d *Downloader) explain(p *plan, err error) error {
	var ours *Error
	var wrong *errWrongHash
	var file *os.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &ours):
		if ours.Repo == "" {
			ours.Repo = p.req.Repo
		}
		return ours
	case isDiskFull(err):
		return failure(ErrDiskFull, p.req.Repo, err, "the disk of %s is full; make room and download again: what is here is kept", d.o.Cache)
	case errors.As(err, &wrong):
		return failure(ErrCorrupt, p.req.Repo, err, "the hub sends wrong bytes (%v); try again later", wrong)
	case errors.As(err, &file), errors.As(err, &link):
		return failure(ErrFile, p.req.Repo, err, "%v", err)
	}
	return d.hub.explain(p.req.Repo, p.req.Revision, err)
}

// fetchOne fetches one snapshot: blobs, then their names, then the branch.
func (j *Job) fetchOne(ctx context.Context, p *plan) error {
	if p.d.o.Offline {
		return nil
	}
	if len(p.missing) > 0 || slices.ContainsFunc(p.files, func(f repoFile) bool { return !hasSize(p.pointer(f), f.Size) }) {
		if err := p.locked(ctx, p.writeManifest); err != nil {
			return err
		}
		if err := j.fetchBlobs(ctx, p); err != nil {
			var ours *Error
			if errors.As(err, &ours) && ours.Kind == ErrUnusable {
				return errors.Join(err, p.locked(ctx, p.cleanup))
			}
			return err
		}
	}
	return p.locked(ctx, p.publish)
}

// locked runs op while no other process changes the names in the repository's
// folder.
func (p *plan) locked(ctx context.Context, op func() error) error {
	path := filepath.Join(p.d.o.Cache, ".locks", repoFolder(p.req.Repo), "sparkbar.lock")
	release, err := p.d.o.disk.lock(ctx, path, p.d.sleep, nil)
	if err != nil {
		return err
	}
	defer release()
	return op()
}

func (d *Downloader) sleep(ctx context.Context, t time.Duration) error {
	return sleep(ctx, d.o.clock, t)
}

func (p *plan) writeManifest() error {
	k := &p.d.o.disk
	text, err := json.MarshalIndent(manifest{p.req.Repo, p.req.Revision, p.commit, p.model, p.files}, "", " ")
	if err != nil {
		return err
	}
	if err := k.folder(filepath.Join(p.folder, "blobs")); err != nil {
		return err
	}
	if have, err := os.ReadFile(p.manifest()); err == nil && string(have) == string(text) {
		return nil
	}
	return k.replace(p.manifest(), p.manifest()+".tmp", text)
}

// fetchBlobs fetches what is missing: config.json, then the small files side by
// side, then one large file after the other.
func (j *Job) fetchBlobs(ctx context.Context, p *plan) error {
	files := p.missing
	if len(p.files) > 0 && p.files[0].Path == "config.json" {
		if len(files) > 0 && files[0].Path == "config.json" {
			if err := j.fetchBlob(ctx, p, files[0]); err != nil {
				return err
			}
			files = files[1:]
		}
		if err := p.checkConfig(); err != nil {
			return err
		}
	}
	var small, large []repoFile
	for _, f := range files {
		if f.Size > p.d.o.chunk {
			large = append(large, f)
		} else {
			small = append(small, f)
		}
	}
	err := parallel(ctx, p.d.o.Workers, len(small), func(ctx context.Context, i int) error { return j.fetchBlob(ctx, p, small[i]) })
	for _, f := range large {
		if err == nil {
			err = j.fetchBlob(ctx, p, f)
		}
	}
	return err
}

// checkConfig refuses a model that could not be run, before its weights come.
func (p *plan) checkConfig() error {
	if p.req.Drafter {
		return nil
	}
	path := p.blob(p.files[0])
	if !hasSize(path, p.files[0].Size) {
		path = p.pointer(p.files[0])
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	cfg, err := checkpoint.ParseConfig("config.json", text)
	if err != nil {
		return failure(ErrUnusable, p.req.Repo, err, "%v", err)
	}
	if isDrafterConfig(cfg) {
		return nil
	}
	if kind := cfg.StringOr("model_type", ""); !slices.Contains(arch.Types(), kind) {
		return failure(ErrUnusable, p.req.Repo, nil, "the model is of type %q, which Sparkbar cannot run; its weights were not downloaded", kind)
	}
	return nil
}

// parallel runs n tasks on some goroutines and returns the first error.
func parallel(ctx context.Context, workers, n int, task func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next int
	var first error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil
				mu.Unlock()
				if stop || i >= n {
					return
				}
				if err := task(ctx, i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
						cancel(err)
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

// fetchBlob brings one blob to its place, under its lock.
func (j *Job) fetchBlob(ctx context.Context, p *plan, f repoFile) error {
	d := p.d
	lock := filepath.Join(d.o.Cache, ".locks", repoFolder(p.req.Repo), f.ETag+".lock")
	waited := false
	release, err := d.o.disk.lock(ctx, lock, d.sleep, func() {
		waited = true
		j.state(StateWaiting, p.req.Repo)
	})
	if waited {
		j.state(StateDownloading, p.req.Repo)
	}
	if err != nil {
		return err
	}
	defer release()
	blob := p.blob(f)
	for try := range 2 {
		if hasSize(blob, f.Size) { // another process was faster
			j.add(f.Size, false)
			return discardPartial(&d.o.disk, blob)
		}
		part, err := openPartial(ctx, &d.o.disk, blob, f, d.o.chunk, func(n int64) { j.add(n, false) })
		if err != nil {
			return err
		}
		if err = j.transfer(ctx, p, f, part); err != nil {
			part.close()
			return err
		}
		err = part.finish()
		var wrong *errWrongHash
		if errors.As(err, &wrong) && try == 0 {
			j.add(-f.Size, false)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		return nil
	}
	return nil
}

// origin is where a file is served, and where the hub last redirected to.
type origin struct {
	h    *hub
	hub  *url.URL
	mu   sync.Mutex
	last *url.URL
}

// get asks for the bytes [lo, hi), or with hi < 0 for all.
func (o *origin) get(ctx context.Context, lo, hi int64) (io.ReadCloser, int, string, int64, error) {
	o.mu.Lock()
	u := o.last
	o.mu.Unlock()
	if u == nil {
		u = o.hub
	}
	resp, at, err := o.h.request(ctx, u, lo, hi)
	var status *statusError
	if errors.As(err, &status) && (u != o.hub || status.redirected) && status.status/100 == 4 && status.status != 429 && status.status != 408 {
		// Signed addresses expire: ask for a new one.
		resp, at, err = o.h.request(ctx, o.hub, lo, hi)
	}
	if err != nil {
		o.mu.Lock()
		o.last = nil
		o.mu.Unlock()
		return nil, 0, "", 0, err
	}
	o.mu.Lock()
	o.last = at
	o.mu.Unlock()
	return resp.Body, resp.StatusCode, resp.Header.Get("Content-Range"), resp.ContentLength, nil
}

// errNoRanges is a server that sends the whole file whatever is asked for.
var errNoRanges = errors.New("the server does not send parts of files")

// transfer fetches the missing chunks of a file.
func (j *Job) transfer(ctx context.Context, p *plan, f repoFile, part *partial) error {
	from := &origin{h: p.d.hub, hub: p.d.hub.fileURL(p.req.Repo, p.commit, f.Path)}
	received := func(n int64) { j.add(n, n > 0) }
	list := part.missing()
	err := parallel(ctx, p.d.o.Workers, len(list), func(ctx context.Context, i int) error {
		w := part.writer(list[i], received)
		err := p.d.hub.retry(ctx, func() int64 { return w.at }, func() error { return fetchRange(ctx, from, f, w) })
		if err != nil {
			w.restart()
			return err
		}
		return w.finish()
	})
	if !errors.Is(err, errNoRanges) {
		return err
	}
	return p.d.hub.retry(ctx, part.bytes, func() error { return fetchWhole(ctx, from, f, part, received) })
}

// fetchRange goes on with one chunk.
func fetchRange(ctx context.Context, from *origin, f repoFile, w *chunkWriter) error {
	if w.at == w.end {
		return nil
	}
	hi := w.end
	if w.at == 0 && w.end == f.Size {
		hi = -1
	}
	body, status, span, length, err := from.get(ctx, w.at, hi)
	if err != nil {
		return err
	}
	defer body.Close()
	switch {
	case status == 200 && hi < 0:
		if length >= 0 && length != f.Size {
			return errLength(f, length)
		}
	case status == 200:
		return failure(ErrNetwork, "", errNoRanges, "%v", errNoRanges)
	case span != fmt.Sprintf("bytes %d-%d/%d", w.at, w.end-1, f.Size):
		return failure(ErrNetwork, "", nil, "asked for bytes %d-%d/%d of %s, the server sends %q; try again later, or without the proxy in between", w.at, w.end-1, f.Size, f.Path, clip(span, 60))
	}
	return copyChunk(w, body)
}

func errLength(f repoFile, length int64) error {
	return failure(ErrCorrupt, "", nil, "%s has %d bytes at the server, the hub promised %d; try again later", f.Path, length, f.Size)
}

func copyChunk(w *chunkWriter, body io.Reader) error {
	buf := make([]byte, min(256<<10, w.end-w.at))
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(body, w.end-w.at), buf); err != nil {
		return err
	}
	if w.at != w.end {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// fetchWhole reads the whole file and keeps the chunks that are missing.
func fetchWhole(ctx context.Context, from *origin, f repoFile, part *partial, received func(int64)) error {
	body, _, _, length, err := from.get(ctx, 0, -1)
	if err != nil {
		return err
	}
	defer body.Close()
	if length >= 0 && length != f.Size {
		return errLength(f, length)
	}
	for i := range part.done {
		lo, hi := part.span(i)
		if part.has(i) {
			if _, err := io.CopyN(io.Discard, body, hi-lo); err != nil {
				return err
			}
			continue
		}
		w := part.writer(i, received)
		if err := copyChunk(w, body); err != nil {
			w.restart()
			return err
		}
		if err := w.finish(); err != nil {
			return err
		}
	}
	return nil
}

// publish gives the files of a snapshot their names, config.json last, points
// the branch to it, and clears up.
func (p *plan) publish() error {
	if err := p.link(); err != nil {
		return err
	}
	if err := p.pointRef(); err != nil {
		return err
	}
	k := &p.d.o.disk
	for _, f := range p.files { // a kill may have left a journal behind
		if err := discardPartial(k, p.blob(f)); err != nil {
			return err
		}
	}
	if err := p.outdated(); err != nil {
		return err
	}
	return k.remove(p.manifest())
}

// outdated removes what unfinished downloads of earlier commits of the branch
// have left: nobody will go on with them.
func (p *plan) outdated() error {
	found, _ := filepath.Glob(filepath.Join(p.folder, manifestPrefix+"*.json"))
	for _, path := range found {
		var old manifest
		text, err := wholefile.Read(path, maxManifest)
		if err != nil || json.Unmarshal(text, &old) != nil || old.Revision != p.req.Revision || old.Commit == p.commit || old.Model != p.model || !isHex(old.Commit, 40) {
			continue
		}
		files := slices.DeleteFunc(old.Files, func(f repoFile) bool {
			return !isPlainPath(f.Path) || !isHex(f.ETag, 40) && !isHex(f.ETag, 64) || slices.ContainsFunc(p.files, func(g repoFile) bool { return f.ETag == g.ETag })
		})
		q := &plan{d: p.d, req: p.req, commit: old.Commit, folder: p.folder, files: files}
		if err := q.cleanup(); err != nil {
			return err
		}
	}
	return nil
}

func (p *plan) link() error {
	k := &p.d.o.disk
	folders := map[string]bool{}
	for i := range p.files {
		f := p.files[len(p.files)-1-i]
		path := p.pointer(f)
		if hasSize(path, f.Size) {
			continue
		}
		if !hasSize(p.blob(f), f.Size) {
			return failure(ErrFile, p.req.Repo, nil, "%s was removed from the cache meanwhile; download the model again", f.Path)
		}
		if err := k.folder(filepath.Dir(path)); err != nil {
			return err
		}
		folders[filepath.Dir(path)] = true
		target, err := filepath.Rel(filepath.Dir(path), p.blob(f))
		if err != nil {
			return err
		}
		if err := k.link(target, path); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) {
			// A volume without links: the file itself gets the name, or a copy
			// of a small one, which may have several.
			if f.Size > p.d.o.chunk {
				err = k.rename(p.blob(f), path)
			} else if text, e := os.ReadFile(p.blob(f)); e != nil {
				err = e
			} else {
				err = k.replace(path, path+tempSuffix, text)
			}
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	for dir := range folders {
		if err := k.syncFolder(dir); err != nil {
			return err
		}
	}
	return nil
}

// pointRef notes which commit the wanted branch is.
func (p *plan) pointRef() error {
	k := &p.d.o.disk
	if p.req.Revision == p.commit {
		return nil
	}
	ref := filepath.Join(p.folder, "refs", filepath.FromSlash(p.req.Revision))
	if have, err := os.ReadFile(ref); err == nil && string(have) == p.commit {
		return nil
	}
	if err := k.folder(filepath.Dir(ref)); err != nil {
		return err
	}
	// Not beside the ref: readers take every file there for one.
	return k.replace(ref, filepath.Join(p.folder, manifestPrefix+p.commit+".ref.tmp"), []byte(p.commit))
}

// cleanup removes what an unfinished download has brought: blobs that no
// snapshot names, and partial files. Files that another process holds stay.
func (p *plan) cleanup() error {
	k := &p.d.o.disk
	if p.d.o.Offline {
		return nil
	}
	if _, err := os.Stat(p.manifest()); errors.Is(err, os.ErrNotExist) {
		return nil // finished, or never begun
	}
	for _, f := range p.files {
		if target, err := os.Readlink(p.pointer(f)); err == nil && filepath.Base(target) == f.ETag {
			if err := k.remove(p.pointer(f)); err != nil {
				return err
			}
		}
	}
	named := map[string]bool{} // blobs of other snapshots
	err := filepath.WalkDir(filepath.Join(p.folder, "snapshots"), func(path string, e os.DirEntry, err error) error {
		if target, e := os.Readlink(path); e == nil {
			named[filepath.Base(target)] = true
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, f := range p.files {
		lock := filepath.Join(p.d.o.Cache, ".locks", repoFolder(p.req.Repo), f.ETag+".lock")
		busy := func(context.Context, time.Duration) error { return syscall.EBUSY }
		release, err := k.lock(context.Background(), lock, busy, nil)
		if errors.Is(err, syscall.EBUSY) {
			continue
		} else if err != nil {
			return err
		}
		err = discardPartial(k, p.blob(f))
		if err == nil && !named[f.ETag] {
			err = k.remove(p.blob(f))
		}
		release()
		if err != nil {
			return err
		}
	}
	if err := k.remove(p.manifest()); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join("snapshots", p.commit), "snapshots", "blobs", "refs", ""} {
		_ = os.Remove(filepath.Join(p.folder, dir)) // only what is empty goes
	}
	return nil
}
