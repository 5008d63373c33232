package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/engine"
	"sparkbar/engine/cache"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/httpapi"
	"sparkbar/metalkern"
	"sparkbar/resources"
)

// demoID is the id of the model that is part of the binary.
const demoID = "demo"

// profiles are the values of --compat.
var profiles = map[string]func() httpapi.Profile{"sparkbar": httpapi.SparkbarProfile, "mlx-lm": httpapi.MLXLMProfile}

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over HTTP",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := bind(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, v, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	modelFlags(cmd)
	serverFlags(cmd)
	return cmd
}

func serverFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("host", "127.0.0.1", "address to listen on")
	f.Int("port", 8080, "port to listen on (0 = any free one)")
	f.StringArray("api-key", nil, "key that clients must present; may be repeated")
	f.String("api-key-file", "", "file with one key per line")
	f.StringSlice("allow-host", nil, "name accepted in the Host header besides loopback names; * = any")
	f.StringSlice("cors-origin", nil, "web origin whose pages may call the API; * = any")
	f.Bool("no-model", false, "start without a model")
	f.Bool("no-model-switch", false, "requests cannot load another local model by naming it")
	f.Duration("idle-unload", 0, "unload the model after this long without a request, such as 30m; the next request loads it again (0 = never)")
	f.Int("default-max-tokens", 2048, "longest answer when a request does not say")
	f.Int("max-tokens-cap", 32768, "longest answer that a request may ask for")
	f.Float64("default-temperature", 0, "temperature when a request does not say (default: the model's)")
	f.Float64("default-top-p", 1, "top_p when a request does not say (default: the model's)")
	f.Int("default-top-k", 0, "top_k when a request does not say (default: the model's)")
	f.String("model-root", "", "folder below which clients may load models (default: the working folder)")
	f.Int("prefix-cache-slots", 2, "finished conversations that are kept for reuse")
	f.Bool("no-prefix-cache", false, "keep no conversations for reuse")
	f.String("prefix-cache-dir", "", "folder that keeps long prompts across restarts (default: below the user's cache folder)")
	f.Float64("prefix-cache-disk", 8, "GB that this folder may hold (0 = keep nothing on disk)")
	f.Int("max-batch", 8, "answers that are generated together")
	f.Int("queue-limit", 64, "requests that may wait")
	f.String("compat", "sparkbar", "wire profile: sparkbar or mlx-lm")
	f.String("log-level", "info", "debug, info, warn or error")
	f.Bool("behind-proxy", false, "a proxy in front speaks TLS: snippets for clients follow its X-Forwarded-Proto")
	f.Bool("log-prompts", false, "log what models read and write (private; off unless you look for a fault)")
	compatFlags(cmd)
}

// newEngine makes an engine from the flags.
func newEngine(v *config, load engine.LoadRequest) (*engine.Engine, error) {
	target, drafter := resources.Demo()
	root := v.GetString("model-root")
	if root == "" {
		root = "."
	}
	slots := v.GetInt("prefix-cache-slots")
	if v.GetBool("no-prefix-cache") || slots == 0 {
		slots = -1
	}
	backend, err := backendOf(v)
	if err != nil {
		return nil, err
	}
	disk, diskErr := prefixDisk(v, slots)
	places, hub, hubErr := storage(v)
	v.findings = func() []engine.Finding {
		return slices.Concat(findings(v.now(), hubErr), diskFindings(disk, diskErr), backend.findings())
	}
	o := engine.Options{Version: version, Backend: backend.open, Fallback: backend.fallback, Builtins: map[string]engine.Builtin{demoID: {Target: target, Drafter: drafter, DFlash: resources.DemoDFlash()}}, ModelRoot: root,
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: places, Builtins: []models.Model{demoModel(target)}}), Places: places, Downloader: hub,
		Live: live(v, load), Loaded: v.file.loaded, QueueLimit: v.GetInt("queue-limit"), MaxBatch: v.GetInt("max-batch"), Chunk: v.GetInt("prefill-step-size"), Slots: slots, Memory: machine.ReadMemory, Thermal: machine.ReadThermal, Chip: machine.ReadChip(),
		Disk: disk, Arithmetic: arithmetic(v, backend), Findings: v.findings}
	if v.IsSet("prefix-cache-rungs") {
		if o.Rungs = v.GetInt("prefix-cache-rungs"); o.Rungs <= 0 {
			o.Rungs = -1 // none
		}
	}
	o.Bandwidth = func() machine.Bandwidth {
		if gbs := v.GetFloat64("memory-bandwidth"); gbs > 0 {
			return machine.Bandwidth{GBs: gbs, MeasuredAt: time.Now(), Method: "given by --memory-bandwidth"}
		}
		dir, err := os.UserCacheDir()
		if err != nil {
			return machine.Bandwidth{}
		}
		return machine.MeasuredBandwidth(filepath.Join(dir, "sparkbar", "machine.json"), o.Chip)
	}
	o.Threads = v.GetInt("threads")
	if o.Calibrations = v.GetString("calibrations"); o.Calibrations == "" {
		if dir, err := os.UserCacheDir(); err == nil {
			o.Calibrations = filepath.Join(dir, "sparkbar", "calibration.json")
		}
	}
	return engine.New(o), nil
}

// arithmetic names what decides how sums are rounded: instruction sets round
// differently, and each has its own speed.
func arithmetic(v *config, backend backendChoice) string {
	return strings.TrimSpace(fmt.Sprintf("exact=%v %s %s", v.GetBool("exact"), cpu.DefaultLevel(), backend.rounding))
}

// prefixDisk opens the folder of stored prefixes, for as long as the process
// lives; nil where nothing is to be kept.
func prefixDisk(v *config, slots int) (*cache.Disk, error) {
	limit := v.GetFloat64("prefix-cache-disk")
	if limit <= 0 || slots < 0 {
		return nil, nil
	}
	dir := v.GetString("prefix-cache-dir")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(user, "sparkbar", "prefixes")
	}
	return cache.OpenDisk(dir, int64(min(limit, 1<<20)*1e9))
}

func diskFindings(d *cache.Disk, err error) []engine.Finding {
	if err == nil && d != nil {
		err = d.Stats().Fault
	}
	if err == nil {
		return nil
	}
	return []engine.Finding{{Code: "prefix_disk", Level: engine.LevelAttention, Message: "long prompts are not kept on disk: " + err.Error(), Fix: "make room, name another folder with --prefix-cache-dir, or switch it off with --prefix-cache-disk 0"}}
}

// storage is where models lie and what fetches them; a hub that is configured
// badly is nil, and the error says why.
func storage(v *config) (models.Places, *models.Downloader, error) {
	places := models.DefaultPlaces(v.folders("model-dirs")...)
	o := models.DefaultHub()
	o.Cache, o.UserAgent = places.Hub, "sparkbar/"+version
	o.Offline = o.Offline || v.GetBool("offline")
	o.Hosts = append(o.Hosts, v.list("hub-hosts")...)
	if ca := v.GetString("hub-ca"); ca != "" {
		o.CAFile = ca
	}
	hub, err := models.NewDownloader(o)
	if err != nil {
		return places, nil, err
	}
	return places, hub, nil
}

// demoModel describes the built-in model for the catalogue.
func demoModel(files map[string][]byte) models.Model {
	m := models.Model{ID: demoID, Kind: models.KindFolder, Source: models.SourceBuiltin, Complete: true}
	for name, text := range files {
		if strings.HasSuffix(name, ".safetensors") {
			m.Bytes += int64(len(text))
		}
	}
	if cfg, err := checkpoint.ParseConfig("config.json", files["config.json"]); err == nil {
		m.Type, m.Context, m.Geometry = cfg.StringOr("model_type", ""), cfg.IntOr("max_position_embeddings", 0), models.GeometryOf(cfg)
	}
	return m
}

// findings are what only the command line knows to be wrong.
func findings(v *config, hubErr error) []engine.Finding {
	var list []engine.Finding
	if hubErr != nil {
		list = append(list, engine.Finding{Code: "hub", Level: engine.LevelProblem, Message: "models cannot be downloaded: " + hubErr.Error(), Fix: "correct the HF_ENDPOINT or --hub-ca that it names, then restart"})
	}
	if b := v.file.fault.Load(); b != nil {
		list = append(list, engine.Finding{Code: "settings", Level: engine.LevelProblem, Message: "the settings file has an error, so the last good settings stay in use: " + b.Error(), Fix: "edit " + b.file + " at that line, or use `sparkbar config set`"})
	}
	if u := v.file.unknown.Load(); u != nil && len(*u) > 0 {
		list = append(list, engine.Finding{Code: "unknown_settings", Level: engine.LevelAttention, Message: "the settings file has keys that mean nothing here: " + strings.Join(*u, ", "), Fix: "`sparkbar config get` lists the keys there are"})
	}
	if host := v.GetString("host"); host != "" && host != "localhost" && len(v.texts("api-key")) == 0 && v.GetString("api-key-file") == "" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			list = append(list, engine.Finding{Code: "open", Level: engine.LevelProblem, Message: "the server listens on " + host + " without a key, so everybody in the network can use it", Fix: "set --api-key, or listen on 127.0.0.1"})
		}
	}
	return list
}

// backendChoice is what the backend flags ask for.
type backendChoice struct {
	name string // of the backend that open makes
	open func() (compute.Backend, error)
	// fallback is for models that the backend cannot run on this machine; nil = there
	// is none.
	fallback func() (compute.Backend, error)
	rounding string // what of the flags makes its results round differently
	noGPU    error  // why auto is not metal here, where there should be a GPU
}

// findings says that there is a GPU that cannot be used.
func (c backendChoice) findings() []engine.Finding {
	if c.noGPU == nil {
		return nil
	}
	return []engine.Finding{{Code: "gpu", Level: engine.LevelAttention, Message: "models run on the CPU because the GPU cannot be used: " + c.noGPU.Error(), Fix: "run `sparkbar doctor --kernels`; --backend cpu says that the CPU is meant"}}
}

// threads is how many threads compute on the CPU.
func threads(v *config) int {
	return cmp.Or(v.GetInt("threads"), min(machine.Cores(), cpu.MaxThreads))
}

// backendOf checks the backend flags once, before anything is loaded.
func backendOf(v *config) (backendChoice, error) {
	o := cpu.Options{Threads: threads(v), Exact: v.GetBool("exact")}
	onCPU := func() (compute.Backend, error) { return cpu.New(o) }
	fail := func(err error) (backendChoice, error) { return backendChoice{}, &usageError{err} }
	metal, flag, err := metalOptions(v)
	if err != nil {
		return fail(err)
	}
	name := v.GetString("backend")
	if flag != "" && (name == "cpu" || name == "reference") {
		return fail(fmt.Errorf("%s is for the metal backend, and --backend is %s; leave one of them out", flag, name))
	}
	switch name {
	case "reference":
		return backendChoice{name: name, open: func() (compute.Backend, error) { return compute.NewReference(), nil }}, nil
	case "auto", "cpu", "metal":
		b, err := onCPU()
		if err != nil {
			return fail(err)
		}
		if err := b.Close(); err != nil || name == "cpu" {
			return backendChoice{name: "cpu", open: onCPU}, err
		}
		c := backendChoice{name: "cpu", open: onCPU}
		switch err := hasGPU(); {
		case err == nil:
			return backendChoice{name: "metal", open: metalOn(v, metal, metalkern.Trials{}), fallback: onCPU, rounding: flag}, nil
		case name == "metal":
			return fail(fmt.Errorf("--backend metal: %w; use --backend cpu", err))
		case flag != "":
			return fail(fmt.Errorf("%s is for the metal backend, which this machine cannot use: %w; leave it out", flag, err))
		case !errors.Is(err, metalkern.ErrNoDevice):
			c.noGPU = err
		}
		return c, nil
	default:
		return fail(fmt.Errorf("--backend must be auto, cpu, metal or reference, got '%s'", name))
	}
}

// keys collects the API keys of flags, environment and file; keychain resolves
// the one that the Keychain holds.
func keys(v *config, keychain func() (string, error)) ([]string, error) {
	list := v.texts("api-key")
	for i, k := range list {
		if k == keychainKey {
			var err error
			if list[i], err = keychain(); err != nil {
				return nil, err
			}
		}
	}
	if path := v.GetString("api-key-file"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--api-key-file: %w", err)
		}
		if len(bytes.TrimSpace(text)) == 0 { // to go on without a key is not what was asked for
			return nil, fmt.Errorf("--api-key-file: %s holds no key; write one on each line", path)
		}
		list = append(list, strings.Split(string(text), "\n")...)
	}
	var out []string
	for _, k := range list {
		if k = strings.TrimSpace(k); k != "" {
			out = append(out, k)
		}
	}
	return out, nil
}

func setLevel(level *slog.LevelVar, v *config) error {
	l, err := logLevel(v.GetString("log-level"))
	if err == nil {
		level.Set(l)
	}
	return err
}

// serve listens, then loads, then answers until ctx ends.
func serve(ctx context.Context, v *config, stdout, stderr io.Writer) error {
	load, err := loadRequest(v)
	if err != nil {
		return err
	}
	var level slog.LevelVar
	if err := setLevel(&level, v); err != nil {
		return err
	}
	tail := &logTail{}
	log := slog.New(tail.handler(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: &level})))
	apiKeys, err := keys(v, savedKey)
	if err != nil {
		return err
	}
	tellUnused(v, log)
	profile, err := profileOf(v)
	if err != nil {
		return err
	}
	eng, err := newEngine(v, load)
	if err != nil {
		return err
	}
	for _, f := range v.findings() {
		log.Warn(f.Message, "fix", f.Fix)
	}
	ln := newDoor()
	if err := ln.move(hosts(v), v.GetInt("port")); err != nil {
		_ = eng.Close(context.Background())
		return err
	}
	srv := httpapi.New(eng, httpapi.Options{Keys: apiKeys, AllowedHosts: v.list("allow-host"), CORSOrigins: v.list("cors-origin"), Profile: profile, Log: log, LogPrompts: v.GetBool("log-prompts"), BehindProxy: v.GetBool("behind-proxy"), Settings: v, Web: resources.Web(), Owner: owner{eng, tail}})
	base := "http://" + ln.Addr().String()
	fmt.Fprintf(stdout, "listening on %s   (OpenAI base_url: %s/v1, Anthropic base_url: %s)\n", base, base, base)
	if len(apiKeys) > 0 {
		fmt.Fprintln(stdout, "auth: a key is required (Authorization: Bearer ... or x-api-key)")
	}
	was := v
	v.apply = func(now *config) error {
		newKeys, err := keys(now, savedKey)
		if err != nil {
			return err
		}
		if !slices.Equal(hosts(now), hosts(was)) || now.GetInt("port") != was.GetInt("port") {
			if err := ln.move(hosts(now), now.GetInt("port")); err != nil {
				return err
			}
			log.Info("listening", "address", "http://"+ln.Addr().String())
		}
		was = now
		srv.SetAccess(newKeys, now.list("allow-host"), now.list("cors-origin"))
		return setLevel(&level, now)
	}
	if err := v.follow(ctx, eng, log, nil); err != nil {
		log.Warn("changes of the settings file will not be noticed", "error", err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()

	loaded := make(chan error, 1)
	if v.GetBool("no-model") {
		fmt.Fprintf(stdout, "no model loaded; load one with: curl %s/admin/load -d '{\"model\":\"demo\"}'\n", base)
	} else {
		go func() {
			began := time.Now()
			st, err := eng.LoadFrom(ctx, v.loadedLast(eng, load, log))
			if err == nil && st.Model != nil {
				m := st.Model
				drafter := m.Drafter
				if drafter == "" {
					drafter = "none"
				}
				fmt.Fprintf(stdout, "loaded %s in %.1f s: mode %s, drafter %s, context %d, backend %s\n", m.ID, time.Since(began).Seconds(), m.Mode, drafter, m.ContextWindow, m.Backend)
				fmt.Fprintf(stdout, "try: curl %s/v1/chat/completions -H 'content-type: application/json' -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is speculative decoding?\"}]}'\n", base)
			}
			loaded <- err
		}()
	}
	for {
		select {
		case err := <-loaded:
			if err != nil && ctx.Err() == nil {
				log.Error("the model could not be loaded; the server stays up", "error", err)
			}
			loaded = nil
		case err := <-served:
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return errors.Join(err, eng.Close(ctx))
		}
	}
}
