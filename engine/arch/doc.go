// Package arch holds the model families: for each one a file with its
// configuration, the names of its weights and its forward pass, written once
// against engine/compute and readable from top to bottom. llama.go is the one to
// copy for a new family.
//
// Load opens a checkpoint by its model_type, checks that every tensor is there
// with the shape that the configuration promises and that none is left over,
// and hands the weights to a backend. Model.Forward records one step.
//
// forward.go holds the phrases that forward passes are written in (a norm, a
// linear map, attention over the cache, the residual tap), moe.go those of
// experts, recurrent.go those of convolutions and recurrences; rope.go the
// rotary frequencies of every scaling kind; load.go the weight Loader.
// adapter.go puts LoRA and DoRA adapters, and those that replace whole tensors, on
// a loaded model (LoadAdapter, Model.WithAdapter); families need nothing for it but
// the phrases and the Loader.
// docs/add-a-model.md says how to add a family.
//
// Never here: kernels, caching policy, sampling, text.
//
// Read first: Model, then llama.go.
package arch
