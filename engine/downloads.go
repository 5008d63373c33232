package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sparkbar/engine/models"
)

// progressPeriod is how often a download is told about.
const progressPeriod = 250 * time.Millisecond

// endedKept is how many downloads that have ended are still listed.
const endedKept = 8

// download is one job of the downloader, for a load or on its own.
type download struct {
	id, model string
	what      []models.Request
	job       *models.Job
	cleanup   bool          // a cancel removes what is here; guarded by the engine's mu
	done      chan struct{} // closed when the catalogue has seen the result
	result    []models.Snapshot
	err       error // as clients see it
}

// info is where a download stands. It takes no lock of the engine.
func (d *download) info() Download {
	p := d.job.Progress()
	out := Download{ID: d.id, Model: d.model, Repo: p.Repo, State: string(p.State), BytesDone: p.BytesDone, BytesTotal: p.BytesTotal, BytesPerSecond: p.BytesPerSecond, ETA: p.ETA}
	select {
	case <-d.done:
		if d.err != nil {
			out.Error = d.err.Error()
		}
	default:
	}
	return out
}

// Downloads lists the downloads under way, and the latest that have ended.
func (e *Engine) Downloads() []Download {
	e.mu.Lock()
	list := slices.Clone(e.downloads)
	e.mu.Unlock()
	out := []Download{}
	for _, d := range list {
		out = append(out, d.info())
	}
	return out
}

// StartDownload fetches a model of the hub, and with drafter also the one that
// is published for it, without loading it. A download of the same that is under
// way is returned as it is.
func (e *Engine) StartDownload(model string, drafter bool) (Download, error) {
	if _, ok := e.opts.Builtins[model]; ok {
		return Download{}, &Error{Kind: ErrInvalid, Field: "model", Message: fmt.Sprintf("%s is part of the program; there is nothing to download", model)}
	}
	for _, r := range Registry() {
		if r.ID == model {
			model = r.Target
		}
	}
	what := []models.Request{models.Named(model)}
	if c, err := models.Resolve(model, "auto", ""); drafter && err == nil && c.Drafter != "" {
		q := models.Named(c.Drafter)
		q.Drafter = true
		what = append(what, q)
	}
	if !models.OnHub(model) {
		_, err := e.opts.locate(model, "model")
		if err == nil {
			err = &Error{Kind: ErrInvalid, Field: "model", Message: fmt.Sprintf("%q is a folder or file of this machine; a model of the hub is called org/name", clip(model))}
		}
		return Download{}, err
	}
	d, _, err := e.startDownload(model, what)
	if err != nil {
		return Download{}, err
	}
	return d.info(), nil
}

// startDownload starts a job, or joins one that fetches the same; started tells
// which.
func (e *Engine) startDownload(model string, what []models.Request) (d *download, started bool, err error) {
	if e.opts.Downloader == nil {
		return nil, false, &Error{Kind: ErrDownload, Message: "this server downloads nothing; `sparkbar doctor` says why"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, false, errStopping()
	}
	for _, d := range e.downloads {
		if slices.Equal(d.what, what) && !isClosed(d.done) {
			return d, false, nil
		}
	}
	e.downloadsMade++
	d = &download{id: fmt.Sprint("dl_", e.downloadsMade), model: model, what: what, done: make(chan struct{}), job: e.opts.Downloader.Start(what...)}
	e.downloads = append(e.downloads, d)
	e.own.Go(func() { e.follow(d) })
	return d, true, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// follow tells about a download until it has ended.
func (e *Engine) follow(d *download) {
	tick := time.NewTicker(progressPeriod)
	defer tick.Stop()
	for ended, gone := d.job.Done(), e.ending; ended != nil; {
		e.bus.Publish("download", d.info())
		select {
		case <-ended:
			ended = nil
		case <-gone:
			gone = nil
			d.job.Cancel(false)
		case <-tick.C:
		}
	}
	result, err := d.job.Wait(context.Background())
	changed := e.opts.Catalogue != nil && e.opts.Catalogue.Rescan()
	e.mu.Lock()
	if d.result = result; err != nil {
		d.err = downloadError(err, d.cleanup)
	}
	close(d.done)
	if i := slices.Index(e.downloads, d); i >= 0 { // to the end of those that have ended
		e.downloads = append(slices.Delete(e.downloads, i, i+1), d)
	}
	ended := 0
	for i := len(e.downloads) - 1; i >= 0; i-- {
		if isClosed(e.downloads[i].done) {
			if ended++; ended > endedKept {
				e.downloads = slices.Delete(e.downloads, i, i+1)
			}
		}
	}
	e.mu.Unlock()
	if changed {
		e.bus.Publish("models", struct{}{})
	}
	e.bus.Publish("download", d.info())
}

// change does something to a download that has not ended; false if there is
// none of that id.
func (e *Engine) change(id string, do func(*download)) (Download, bool) {
	e.mu.Lock()
	i := slices.IndexFunc(e.downloads, func(d *download) bool { return d.id == id && !isClosed(d.done) && !isClosed(d.job.Done()) })
	if i < 0 {
		e.mu.Unlock()
		return Download{}, false
	}
	d := e.downloads[i]
	do(d)
	e.mu.Unlock()
	info := d.info()
	e.bus.Publish("download", info)
	return info, true
}

// PauseDownload stops the transfer until ResumeDownload; what is here stays. A
// load that waits for it goes on waiting.
func (e *Engine) PauseDownload(id string) (Download, bool) {
	return e.change(id, func(d *download) { d.job.Pause() })
}

// ResumeDownload lets a paused download go on.
func (e *Engine) ResumeDownload(id string) (Download, bool) {
	return e.change(id, func(d *download) { d.job.Resume() })
}

// CancelDownload ends a download, and the load that waits for it. What is here
// stays for the next try, unless cleanup is set.
func (e *Engine) CancelDownload(id string, cleanup bool) (Download, bool) {
	return e.change(id, func(d *download) {
		d.cleanup = d.cleanup || cleanup
		d.job.Cancel(cleanup)
	})
}

// downloadError is the failure of a download in the words of the engine.
func downloadError(err error, cleanup bool) error {
	out := &Error{Kind: ErrDownload, Message: err.Error(), Cause: err}
	var me *models.Error
	if errors.As(err, &me) {
		switch me.Kind {
		case models.ErrInvalid, models.ErrUnusable:
			out.Kind, out.Field = ErrInvalid, "model"
		case models.ErrNotFound:
			out.Kind, out.Field = ErrModelNotFound, "model"
		case models.ErrCancelled:
			kept := "partial files kept — loading it again resumes"
			if cleanup {
				kept = "partial files removed"
			}
			out.Kind, out.Message = ErrCancelled, fmt.Sprintf("download of %s cancelled (%s)", me.Repo, kept)
		}
	}
	return out
}
