package engine

import (
	"fmt"

	"sparkbar/engine/arch"
	"sparkbar/engine/cache"
)

// keepOnDisk lets the model's prefix store use the disk. A past there belongs to
// the weights of target, adapter and drafter, to this version and to how its
// backend rounds, the CPU's part in prompts included: with anything else the same prompt would be read into slightly
// different numbers.
func (e *Engine) keepOnDisk(l *loaded) {
	base := fmt.Sprint(e.opts.Version, " ", l.backend.Name(), " ", e.opts.Arithmetic, " ", l.print)
	caches := []*cache.Cache{l.run.Cache()}
	if d := l.run.Drafter(); d != nil && d.Cache() != nil {
		caches = append(caches, d.Cache())
	}
	l.run.Store().Attach(e.opts.Disk, func(key any) []string {
		target := base
		if now, _ := l.split(); len(now) > 0 {
			target += fmt.Sprint(" cpu ", now)
		}
		if a, ok := key.(*arch.Adapter); ok {
			target += " adapter " + a.Fingerprint()
		} else if key != nil {
			return nil
		}
		return []string{target, target + " drafter " + l.drafterPrint}
	}, caches...)
}
