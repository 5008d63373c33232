// Package checkpoint reads model weights and their configuration as they lie on disk: folders of safetensors in
// Hugging Face and MLX layouts, and GGUF files. It maps files into memory and hands out views; nothing is converted,
// and nothing is copied unless a method says so.
//
// Read [Checkpoint] first: [Open] returns one, [Checkpoint.Config] is its config.json (for GGUF, the metadata written
// as one), [Checkpoint.Tensor] finds small tensors such as norms and biases, and [Checkpoint.Matrix] finds a linear or
// embedding weight in whatever scheme it is stored: dense, MLX affine, mxfp4, mxfp8, nvfp4 or a GGUF block kind. The
// element types, the schemes and the Matrix itself are those of engine/layout, whose Row says what the bytes mean.
//
// Every number in a file is untrusted: counts, offsets, shapes and types are checked before they are used, and a bad
// file is refused with an error that names the file, the tensor and what to do.
//
// What must never live here: the meaning of stored bytes (engine/layout), knowledge of one architecture's layers or of
// its Hugging Face renames (engine/arch does that through [Checkpoint.Rename]), tokenizers (they read GGUF metadata
// through [Checkpoint.GGUF]), downloads, and fast arithmetic. Of Sparkbar the package imports engine/layout alone.
package checkpoint
