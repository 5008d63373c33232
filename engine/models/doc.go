// Package models knows which models there are: the published pairs of target
// and drafter, the models on this machine, and those on a hub.
//
//   - Resolve decides from a model's name, a mode and perhaps a drafter what is
//     to be loaded: a table (pairs.go) and pure functions over it.
//   - Catalogue lists the models in the hub cache, in the folders of LM Studio
//     and Ollama and in configured ones. What is incomplete or cannot be run is
//     listed with the reason and never offered. It reads headers only.
//   - Downloader fetches models into the hub cache, in the layout of Python's
//     huggingface_hub and beside it: in parallel ranges, resumable, each file
//     verified before it has its name. partial.go holds what makes a kill at any
//     moment harmless, hub.go which servers are trusted with what.
//   - Need.Fit computes whether a model fits into memory.
//
// Never here: what a drafter file really is (engine/draft reads that from the
// file itself, and the file wins), loading, HTTP routes, settings.
//
// Read first: Catalogue, then Downloader; for names, Resolve.
package models
