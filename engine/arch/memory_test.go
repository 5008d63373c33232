package arch

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
)

// blank is a checkpoint whose tensors are all zero, so that the file has holes
// where the data is.
type blank struct {
	mode   string // "affine" (groups of 64) or "mxfp4"
	header map[string]any
	size   int64
}

func (b *blank) add(name, dtype string, bytes int64, shape ...int) {
	for _, n := range shape {
		bytes *= int64(n)
	}
	b.header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int64{b.size, b.size + bytes}}
	b.size += bytes
}

func (b *blank) vector(name string, shape ...int) { b.add(name, "BF16", 2, shape...) }

// matrix adds a 4-bit matrix; its shape ends with rows and columns.
func (b *blank) matrix(name string, shape ...int) {
	last := len(shape) - 1
	with := func(n int) []int { return append(append([]int(nil), shape[:last]...), n) }
	b.add(name+".weight", "U32", 4, with(shape[last]/8)...)
	if b.mode == "mxfp4" {
		b.add(name+".scales", "U8", 1, with(shape[last]/32)...)
		return
	}
	b.add(name+".scales", "BF16", 2, with(shape[last]/64)...)
	b.add(name+".biases", "BF16", 2, with(shape[last]/64)...)
}

func (b *blank) write(t *testing.T, config map[string]any) (dir string, size int64) {
	t.Helper()
	dir = t.TempDir()
	group := 64
	if b.mode == "mxfp4" {
		group = 32
	}
	config["quantization"] = map[string]any{"bits": 4, "group_size": group, "mode": b.mode}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	head, err := json.Marshal(b.header)
	if err != nil {
		t.Fatal(err)
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	path := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), 0o600); err != nil {
		t.Fatal(err)
	}
	size = int64(8+len(head)) + b.size
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return dir, size
}

func newBlank(mode string) *blank { return &blank{mode: mode, header: map[string]any{}} }

func (b *blank) attention(p string, hidden, heads, kvHeads, dim int) {
	b.matrix(p+"q_proj", heads*dim, hidden)
	b.matrix(p+"k_proj", kvHeads*dim, hidden)
	b.matrix(p+"v_proj", kvHeads*dim, hidden)
	b.matrix(p+"o_proj", hidden, heads*dim)
}

func (b *blank) mlp(p string, hidden, inter int) {
	b.matrix(p+"gate_proj", inter, hidden)
	b.matrix(p+"up_proj", inter, hidden)
	b.matrix(p+"down_proj", hidden, inter)
}

func blankDense(t *testing.T) (string, int64) {
	const hidden, layers, inter, vocab = 2048, 36, 5632, 8192
	b := newBlank("affine")
	b.matrix("model.embed_tokens", vocab, hidden)
	b.vector("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		b.vector(p+"input_layernorm.weight", hidden)
		b.vector(p+"post_attention_layernorm.weight", hidden)
		b.attention(p+"self_attn.", hidden, 32, 32, 64)
		b.mlp(p+"mlp.", hidden, inter)
	}
	return b.write(t, map[string]any{"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inter,
		"num_attention_heads": 32, "vocab_size": vocab, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})
}

func blankMixture(t *testing.T) (string, int64) {
	const hidden, layers, inter, vocab, experts, dim = 1536, 8, 1536, 8192, 32, 64
	b := newBlank("mxfp4")
	b.matrix("model.embed_tokens", vocab, hidden)
	b.matrix("lm_head", vocab, hidden)
	b.vector("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		b.vector(p+"input_layernorm.weight", hidden)
		b.vector(p+"post_attention_layernorm.weight", hidden)
		b.attention(p+"self_attn.", hidden, 16, 4, dim)
		b.vector(p+"self_attn.q_proj.bias", 16*dim)
		b.vector(p+"self_attn.k_proj.bias", 4*dim)
		b.vector(p+"self_attn.v_proj.bias", 4*dim)
		b.vector(p+"self_attn.o_proj.bias", hidden)
		b.vector(p+"self_attn.sinks", 16)
		b.vector(p+"mlp.router.weight", experts, hidden)
		b.vector(p+"mlp.router.bias", experts)
		for _, n := range []string{"gate", "up", "down"} {
			b.matrix(p+"mlp.experts."+n+"_proj", experts, inter, hidden)
			b.vector(p+"mlp.experts."+n+"_proj.bias", experts, inter)
		}
	}
	return b.write(t, map[string]any{"model_type": "gpt_oss", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inter, "head_dim": dim,
		"num_attention_heads": 16, "num_key_value_heads": 4, "num_local_experts": experts, "num_experts_per_tok": 4, "vocab_size": vocab, "rms_norm_eps": 1e-5,
		"rope_theta": 150000, "sliding_window": 128})
}

func blankHybrid(t *testing.T) (string, int64) {
	const hidden, layers, inter, vocab, dim, heads, kvHeads = 2048, 32, 6144, 8192, 128, 16, 4
	const kHeads, vHeads, each = 16, 32, 128
	b := newBlank("affine")
	root := "language_model.model."
	b.matrix(root+"embed_tokens", vocab, hidden)
	b.matrix("language_model.lm_head", vocab, hidden)
	b.vector(root+"norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("%slayers.%d.", root, i)
		b.vector(p+"input_layernorm.weight", hidden)
		b.vector(p+"post_attention_layernorm.weight", hidden)
		b.mlp(p+"mlp.", hidden, inter)
		if (i+1)%4 == 0 {
			b.vector(p+"self_attn.q_norm.weight", dim)
			b.vector(p+"self_attn.k_norm.weight", dim)
			b.matrix(p+"self_attn.q_proj", 2*heads*dim, hidden)
			b.matrix(p+"self_attn.k_proj", kvHeads*dim, hidden)
			b.matrix(p+"self_attn.v_proj", kvHeads*dim, hidden)
			b.matrix(p+"self_attn.o_proj", hidden, heads*dim)
			continue
		}
		p += "linear_attn."
		b.vector(p+"A_log", vHeads)
		b.vector(p+"dt_bias", vHeads)
		b.vector(p+"norm.weight", each)
		b.vector(p+"conv1d.weight", (2*kHeads+vHeads)*each, 4, 1)
		b.matrix(p+"in_proj_qkv", (2*kHeads+vHeads)*each, hidden)
		b.matrix(p+"in_proj_z", vHeads*each, hidden)
		b.matrix(p+"in_proj_a", vHeads, hidden)
		b.matrix(p+"in_proj_b", vHeads, hidden)
		b.matrix(p+"out_proj", hidden, vHeads*each)
	}
	return b.write(t, map[string]any{"model_type": "qwen3_5", "text_config": map[string]any{"model_type": "qwen3_5_text", "hidden_size": hidden,
		"num_hidden_layers": layers, "intermediate_size": inter, "vocab_size": vocab, "head_dim": dim, "num_attention_heads": heads, "num_key_value_heads": kvHeads,
		"full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": each, "linear_value_head_dim": each, "linear_num_key_heads": kHeads,
		"linear_num_value_heads": vHeads, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_parameters": map[string]any{"rope_theta": 1e7, "partial_rotary_factor": 0.25}}})
}

const memoryEnv = "SPARKBAR_TEST_MEMORY"

// TestResidentMemory: a model takes no more memory than its file and 5 %, also
// where the backend repacks the weights, and after all of them were read.
func TestResidentMemory(t *testing.T) {
	if testing.Short() || underRace {
		t.Skip("a gigabyte of weights takes too long here")
	}
	if runtime.GOOS != "linux" {
		t.Skip("resident memory is read from /proc, which only Linux has")
	}
	for name, make := range map[string]func(*testing.T) (string, int64){"dense": blankDense, "mixture": blankMixture, "hybrid": blankHybrid} {
		dir, size := make(t)
		if size < 500<<20 || size > 1200<<20 {
			t.Errorf("%s: the file has %d MiB", name, size>>20)
		}
		for _, exact := range []string{"exact", "fast"} {
			c := exec.Command(os.Args[0], "-test.run=^TestResidentMemoryOfOne$", "-test.v")
			c.Env = append(os.Environ(), memoryEnv+"="+exact+" "+dir)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			for _, when := range []string{"loaded", "run"} {
				_, after, ok := strings.Cut(string(out), when+" ")
				text, _, _ := strings.Cut(after, " ")
				n, err := strconv.ParseInt(text, 10, 64)
				if !ok || err != nil {
					t.Fatalf("%s\n%s", name, out)
				}
				t.Logf("%s, %s, %s: %d MiB for a file of %d MiB", name, exact, when, n>>20, size>>20)
				if n > size+size/20 {
					t.Errorf("%s, %s, %s: %d MiB are resident for a file of %d MiB", name, exact, when, n>>20, size>>20)
				}
			}
		}
	}
}

// TestResidentMemoryOfOne is the process that TestResidentMemory starts.
func TestResidentMemoryOfOne(t *testing.T) {
	exact, dir, ok := strings.Cut(os.Getenv(memoryEnv), " ")
	if !ok {
		return
	}
	b, err := cpu.New(cpu.Options{Exact: exact == "exact"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	before := resident(t)
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	m, err := Load(ck, b)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	fmt.Printf("loaded %d bytes\n", resident(t)-before)
	c, err := cache.New(b, m.Caches, cache.Options{Type: layout.F32, Positions: 256, Sequences: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b, m: m, c: c, params: compute.NewParams(b), s: compute.NewScratch(b)}
	q := r.seq()
	r.step(q, randomIDs(4, m.Vocab), 4)
	r.step(q, randomIDs(1, m.Vocab), 1)
	q.Close()
	c.Close() // what is left is the weights, all of them touched
	r.s.Close()
	r.params.Close()
	fmt.Printf("run %d bytes\n", resident(t)-before)
}

// resident is the memory of this process: its own and what it maps.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var sum int64
	s := bufio.NewScanner(f)
	for s.Scan() {
		key, rest, _ := strings.Cut(s.Text(), ":")
		if key == "RssAnon" || key == "RssFile" || key == "RssShmem" {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n << 10
		}
	}
	return sum
}
